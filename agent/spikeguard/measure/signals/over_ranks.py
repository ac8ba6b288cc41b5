"""What optional signals come to over all ranks, where there are several.

Shares and entropies are means over the ranks that measured them (the entropy of the whole batch is
a little higher: ranks share most of their tokens), the others are the highest rank's.
Law: pure; numbers travel with the step's vote (`agreement`), and a value that is not finite stays
one: a highest value that is NaN is told as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spikeguard_protocol import OptionalSignal

MEANS: tuple[str, ...] = (
    OptionalSignal.TOKEN_ENTROPY.value,
    OptionalSignal.UNSEEN_TOKENS.value,
    OptionalSignal.UNCHANGED_PARAMETERS.value,
)
HIGHEST: tuple[str, ...] = (
    OptionalSignal.LOSS_SEQUENCE_MAX.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_NORM_MAX.value,
)


def parts_of(values: Mapping[str, float]) -> list[float]:
    """For each of `MEANS`: this rank's value, and whether it has one. They are added up."""
    return [n for name in MEANS for n in ((values[name], 1.0) if name in values else (0.0, 0.0))]


def highest_of(values: Mapping[str, float]) -> list[float]:
    """For each of `HIGHEST`: this rank's value, -inf where it has none."""
    found = [values.get(name, -math.inf) for name in HIGHEST]
    return [math.inf if math.isnan(value) else value for value in found]


def over_ranks(parts: Sequence[float], highest: Sequence[Sequence[float]]) -> dict[str, float]:
    """By signal, from the sums of all `parts_of` and the `highest_of` of every rank."""
    pairs = zip(MEANS, parts[::2], parts[1::2], strict=True)
    means = {name: total / count for name, total, count in pairs if count}
    most = {name: max(each) for name, each in zip(HIGHEST, zip(*highest, strict=True), strict=True)}
    return means | {name: value for name, value in most.items() if value > -math.inf}
