"""Signals of the user's own: what `guard.log` was given since the last step.

Invariants: nothing is read on the host and nothing raises. At most `MOST_NAMES` names an attempt.
A name or value that cannot be taken is a fault once, and left out from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.faults import Faults
from spikeguard.ranks.replicas import HIGH, LOW, REPLICA_APART, REPLICAS_APART
from spikeguard.ranks.vote import LOSS_SUM, LOSS_WEIGHT, LOST_STEP
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, OptionalSignal
from spikeguard_protocol.identity import NAME_PATTERN

MOST_NAMES = 16  # in an attempt
MOST_REFUSALS = 64  # that are remembered; the rest is left out without a word
PLACE = "log"
_MADE = {
    LOSS_SUM,
    LOSS_WEIGHT,
    HIGH,
    LOW,
    REPLICA_APART,
    REPLICAS_APART,
    LOST_STEP,
}
_OF_THE_LOOP = {  # signals with a meaning that only the model, or a scaler of its own, can show
    OptionalSignal.LOSS_SCALE.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_NORM_MAX.value,
    OptionalSignal.ACTIVATION_OUTLIER_MAX.value,
}
_TAKEN = frozenset({*STANDARD_SIGNALS, *OPTIONAL_SIGNALS, *_MADE} - _OF_THE_LOOP)


class OwnSignals:
    """Values by name between two steps; the newest of a step counts."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._names = set[str]()
        self._refused = set[str]()
        self.values: dict[str, float | Tensor] = {}

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Keep `values` for the step that is being made."""
        for name, value in values.items():
            if name not in self._names and not self._admit(name):
                continue
            if type(value) is float:
                self.values[name] = value
            elif isinstance(value, Tensor):
                self._log_tensor(name, value)
            elif isinstance(value, Real):
                self.values[name] = float(value)
            else:
                self._refuse(name, f"takes a number or a tensor (), not {type(value).__name__}")

    @torch.no_grad()
    def _log_tensor(self, name: str, value: Tensor) -> None:
        if isinstance(value, DTensor) or value.is_meta:
            self._refuse(name, "takes a plain tensor with values; log its .full_tensor()")
        elif value.ndim or value.is_complex():
            shape = tuple(value.shape)
            self._refuse(name, f"takes a real tensor (), not {value.dtype} {shape}: .mean()")
        else:  # copied, since the caller may change it
            self.values[name] = value.detach().to(torch.float32, copy=True)

    def take(self) -> dict[str, float | Tensor]:
        """The values of the step that ends."""
        taken, self.values = self.values, {}
        return taken

    def _admit(self, name: object) -> bool:
        """Whether `name`, not seen before, may be logged."""
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            limit = "is no name: 1 to 64 of letters, digits, `.`, `_`, `-`; rename it"
        elif name in _TAKEN:
            limit = "is a signal of the agent's own; rename it"
        elif len(self._names) >= MOST_NAMES:
            limit = f"is one more than {MOST_NAMES} names; log fewer"
        else:
            self._names.add(name)
            return True
        self._refuse(name, limit)
        return False

    def _refuse(self, name: object, why: str) -> None:
        said = f"{name!s:.64}"
        if said not in self._refused and len(self._refused) < MOST_REFUSALS:
            self._refused.add(said)
            self._faults.note(PLACE, f"guard.log: {said!r} {why}")
