"""Signals besides loss and norms: what the loop shows of its tokens and sequences, what it logs
itself, what a schedule or a gradient scaler changes.

Nothing here reads a device value, meets another rank or raises into the loop. What is off costs a
test of one attribute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Final

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spikeguard.faults import Faults
from spikeguard.measure.batch_ring import BUCKETS, BatchRing, sequence_means
from spikeguard.ranks.model_parts import local
from spikeguard.ranks.replicas import HIGH, LOW, REPLICA_APART, REPLICAS_APART
from spikeguard.ranks.vote import LOSS_SUM, LOSS_WEIGHT, LOST_STEP
from spikeguard_protocol import OPTIONAL_SIGNALS, RATES_OF_GROUPS, STANDARD_SIGNALS, OptionalSignal
from spikeguard_protocol.identity import NAME_PATTERN

MOST = 2**22  # tokens of one rank's step, which fp32 counts exactly; beyond it none are counted
ENTROPY, UNSEEN = OptionalSignal.TOKEN_ENTROPY.value, OptionalSignal.UNSEEN_TOKENS.value
WORST = OptionalSignal.LOSS_SEQUENCE_MAX.value


class TokenStatistics:
    """What was shown since the last step, and which buckets were never met.

    Ids are counted in `BUCKETS` buckets, by their lowest bits: exactly up to that size of
    vocabulary, beyond it as a sketch in which few ids share a bucket. Out-of-range and negative ids
    have a bucket too, so a bad id cannot fault the device. Cost: work in proportion to the tokens,
    none in proportion to the vocabulary; 2 MB on the device and 8 bytes a token of one step.
    """

    def __init__(self) -> None:
        self._shown: list[Tensor] = []
        self._held = 0
        self._counts = torch.empty(0)  # (BUCKETS,) fp32, all 0 between two steps
        self._fresh = torch.empty(0)  # (BUCKETS,) fp32, 1 where no token was met, else 0
        self._one = torch.ones(1)

    @torch.no_grad()
    def show(self, ids: Tensor) -> None:
        """Note one micro-batch's token ids, whole numbers in any shape; the tensor stays free."""
        count = ids.numel()
        if not count or self._held + count > MOST:
            return
        self._held += count
        self._shown.append(ids.detach().reshape(-1).long() & (BUCKETS - 1))

    @torch.no_grad()
    def take(self) -> dict[str, Tensor]:
        """Entropy in nats and the share that no step before held, () each; then start anew."""
        if not self._shown:
            return {}
        tokens = self._shown[0] if len(self._shown) == 1 else torch.cat(self._shown)
        self.forget()
        self._move_to(tokens.device)
        counts, fresh = self._counts, self._fresh
        counts.index_add_(0, tokens, self._one.expand(len(tokens)))
        # sum of -p log p, each token bringing its own share: no pass over the buckets
        entropy = math.log(len(tokens)) - counts.index_select(0, tokens).log_().mean()
        counts.index_fill_(0, tokens, 0.0)
        unseen = fresh.index_select(0, tokens).mean()
        fresh.index_fill_(0, tokens, 0.0)
        return {ENTROPY: entropy, UNSEEN: unseen}

    def forget(self) -> None:
        """Drop what was shown since the last step."""
        self._shown, self._held = [], 0

    def known(self) -> Tensor | None:
        """Which buckets were met, (BUCKETS,) bool: goes into snapshots and checkpoints (256 kB)."""
        return self._fresh == 0.0 if len(self._fresh) else None

    def restore(self, known: Tensor | None) -> None:
        """Know what was known then."""
        if known is None or known.shape != (BUCKETS,):
            self._fresh = torch.empty(0)
        else:
            self._fresh = 1.0 - known.to(self._counts.device).float()

    def _move_to(self, device: torch.device) -> None:
        if len(self._counts) and self._counts.device == device and len(self._fresh):
            return
        self._counts = torch.zeros(BUCKETS, device=device)
        self._one = torch.ones(1, device=device)
        known = self._fresh.to(device)
        self._fresh = known if len(known) else torch.ones(BUCKETS, device=device)


class OptionalSignals:
    """What is shown between two steps."""

    def __init__(self, kept_steps: int) -> None:
        """`kept_steps`: newest batches that are kept for an incident."""
        self.idle = True  # nothing was ever shown
        self._ended = False
        self.tokens = TokenStatistics()
        self._worst: Tensor | None = None  # mean loss of a sequence since the last step, ()
        self.batches = BatchRing(kept_steps)

    def show_tokens(self, ids: Tensor) -> None:
        """Token ids of one micro-batch."""
        if not self._ended:
            self.idle = False
            own = local(ids)
            self.tokens.show(own)
            self.batches.show_tokens(own)

    @torch.no_grad()
    def show_sequences(self, losses: Tensor) -> None:
        """Nats of one micro-batch: (B,) a sequence's mean each, or (B, ...) of its tokens."""
        if self._ended:
            return
        self.idle = False
        own = local(losses)
        self.batches.show_losses(own)
        if own.numel():  # a NaN stays one
            worst = sequence_means(own).amax()
            self._worst = worst if self._worst is None else torch.maximum(self._worst, worst)

    def take(self) -> dict[str, Tensor]:
        """What the step showed, () each; then start anew."""
        taken, worst, self._worst = self.tokens.take(), self._worst, None
        return taken if worst is None else {**taken, WORST: worst}

    def reset(self) -> None:
        """Forget what was shown since the last step."""
        self.tokens.forget()
        self.batches.forget()
        self._worst = None

    def end(self) -> None:
        """Look at nothing any more."""
        self._ended = self.idle = True
        self.reset()


# ---- the loop's own ----


MOST_NAMES = 16  # in an attempt
MOST_REFUSALS = 64  # that are remembered; the rest is left out without a word
PLACE = "log"
_MADE = {LOSS_SUM, LOSS_WEIGHT, HIGH, LOW, REPLICA_APART, REPLICAS_APART, LOST_STEP}
_OF_THE_LOOP = {  # signals with a meaning that only the model, or a scaler of its own, can show
    OptionalSignal.LOSS_SCALE.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_NORM_MAX.value,
    OptionalSignal.ACTIVATION_OUTLIER_MAX.value,
}
_TAKEN = frozenset({*STANDARD_SIGNALS, *OPTIONAL_SIGNALS, *_MADE} - _OF_THE_LOOP)


class OwnSignals:
    """What `guard.log` was given since the last step, by name; the newest of a step counts.

    A name or value that cannot be taken is a fault once, and left out from then on.
    """

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


# ---- what a schedule or a scaler changes ----


ADAM_BETA2: Final = OptionalSignal.ADAM_BETA2.value
LOSS_SCALE: Final = OptionalSignal.LOSS_SCALE.value


def rates_of_groups(
    optimizers: Sequence[Optimizer], number: int, rates: Sequence[Any], first: Any
) -> Mapping[str, float | Tensor]:
    """Rates of one optimizer's groups that are not the `first` group's, by their signals, counted
    over all optimizers. One on a device is another one where it is another tensor."""
    before = sum(len(each.param_groups) for each in optimizers[:number])
    told = dict[str, float | Tensor]()
    for place, rate in enumerate(rates, before):
        on_device = isinstance(rate, Tensor) or isinstance(first, Tensor)
        same = rate is first if on_device else rate == first  # values would be waited for
        if rate is not None and 0 < place <= len(RATES_OF_GROUPS) and not same:
            told[RATES_OF_GROUPS[place - 1]] = (
                rate.clone() if isinstance(rate, Tensor) else float(rate)
            )
    return told


def beta2_of(optimizers: Iterable[Optimizer]) -> dict[str, float]:
    """The smallest beta2 of all groups that have one, by its signal: no second moment falls
    faster."""
    betas = (group.get("betas") for each in optimizers for group in each.param_groups)
    known = (pair[1] for pair in betas if isinstance(pair, tuple | list) and len(pair) > 1)
    told = [float(beta2) for beta2 in known if not isinstance(beta2, Tensor)]
    return {ADAM_BETA2: min(told)} if told else {}


def loss_scale_of(scaler: GradScaler) -> dict[str, Tensor]:
    """(), on its device, by its signal; empty before its first use. `get_scale()` would wait."""
    scale = getattr(scaler, "_scale", None)
    return {LOSS_SCALE: scale.clone()} if isinstance(scale, Tensor) else {}
