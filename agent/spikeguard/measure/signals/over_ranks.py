"""What optional signals come to over all ranks, where there are several.

Shares and entropies are means over the ranks that measured them (the entropy of the whole batch is
a little higher: ranks share most of their tokens), the others are the highest rank's. Signals of
the user's own are means over the ranks that logged any, if these logged the same names at that
step; else rank 0's.
Law: pure; numbers travel with the step's vote (`agreement`), and a value that is not finite stays
one: a highest value that is NaN is told as infinite.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

from spikeguard.measure.signals.own import MOST_NAMES
from spikeguard_protocol import OptionalSignal

MEANS: tuple[str, ...] = (
    OptionalSignal.TOKEN_ENTROPY.value,
    OptionalSignal.UNSEEN_TOKENS.value,
    OptionalSignal.UNCHANGED_PARAMETERS.value,
)
OTHER_DATA = "other_data"  # 1.0 where a batch was read again and was another one
HIGHEST: tuple[str, ...] = (
    OptionalSignal.LOSS_SEQUENCE_MAX.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_NORM_MAX.value,
    OTHER_DATA,
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


OWN_LENGTH = 2 + MOST_NAMES  # checksum of the names, ranks that logged any, and each one's value


def own_parts_of(values: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """This rank's own signals in the order of their names. They are added up."""
    order = sorted(names)[:MOST_NAMES]
    rest = [0.0] * (MOST_NAMES - len(order))
    return [float(_checksum(order)), 1.0, *(values[name] for name in order), *rest]


def own_over_ranks(parts: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """The means of rank 0's `names`; nothing where ranks logged different ones."""
    order, ranks = sorted(names)[:MOST_NAMES], parts[1]
    if not order or parts[0] != ranks * _checksum(order):
        return {}
    return {name: total / ranks for name, total in zip(order, parts[2:], strict=False)}


def _checksum(order: Sequence[str]) -> int:
    """32 bits, so that the sum over a million ranks is exact in a double."""
    return zlib.crc32("\n".join(order).encode())
