"""What optional signals come to over all ranks, where there are several.

Shares and entropies are means over the ranks that measured them (the entropy of the whole batch is
a little higher: ranks share most of their tokens), the others are the highest rank's.
Law: pure; numbers travel with the step's vote (`agreement`), and a value that is not finite stays
one: a highest value that is NaN is told as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    OptionalSignal.ACTIVATION_OUTLIER_MAX.value,
    OTHER_DATA,
)


# What is added up of each mean: this rank's value, and whether it has one.
_PAIRS = tuple((name, f"{name}.sum", f"{name}.ranks") for name in MEANS)
MEAN_NUMBERS: tuple[str, ...] = tuple(name for _, *numbers in _PAIRS for name in numbers)


def parts_of(values: Mapping[str, float]) -> dict[str, float]:
    """This rank's part in each of `MEANS` that it measured. They are added up."""
    found: dict[str, float] = {}
    for name, total, count in _PAIRS:
        if name in values:
            found[total], found[count] = values[name], 1.0
    return found


def highest_of(values: Mapping[str, float]) -> dict[str, float]:
    """Those of `HIGHEST` that this rank measured; NaN as infinite."""
    found = ((name, values[name]) for name in HIGHEST if name in values)
    return {name: math.inf if math.isnan(value) else value for name, value in found}


def over_ranks(summed: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
    """By signal, from the sums and the largest values of all ranks."""
    means = {name: summed[total] / summed[n] for name, total, n in _PAIRS if summed[n]}
    return means | {name: largest[name] for name in HIGHEST if largest[name] > -math.inf}
