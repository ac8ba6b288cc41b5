"""Statistics of a step's tokens: the entropy of their histogram, how many are new, and the loss of
the worst sequence, a running maximum in which a NaN stays a NaN.

Law: the device counts, the host waits for nothing. Ids are counted in `BUCKETS` buckets, by their
lowest bits: exactly up to that size of vocabulary, beyond it as a sketch in which few ids share a
bucket. Out-of-range and negative ids have a bucket too, so a bad id cannot fault the device.
Cost: work in proportion to the tokens, none in proportion to the vocabulary; 2 MB on the device and
8 bytes a token of one step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spikeguard_protocol import OptionalSignal

BUCKETS = 2**18  # a power of two, above the vocabularies in use
MOST = 2**22  # tokens of one rank's step, which fp32 counts exactly; beyond it none are counted
ENTROPY, UNSEEN = OptionalSignal.TOKEN_ENTROPY.value, OptionalSignal.UNSEEN_TOKENS.value
WORST = OptionalSignal.LOSS_SEQUENCE_MAX.value


class TokenStatistics:
    """What was shown since the last step, and which buckets were never met."""

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


class WorstSequence:
    """The highest mean loss of a sequence since the last step."""

    def __init__(self) -> None:
        self._worst: Tensor | None = None

    @torch.no_grad()
    def show(self, losses: Tensor) -> None:
        """Note one micro-batch: nats, (B,) a sequence's mean each, or (B, ...) of its tokens."""
        if not losses.numel():
            return
        each = losses.detach().float()
        worst = (each if each.ndim < 2 else each.flatten(1).mean(1)).amax()
        self._worst = worst if self._worst is None else torch.maximum(self._worst, worst)

    def take(self) -> dict[str, Tensor]:
        """Nats, (); then start anew."""
        worst, self._worst = self._worst, None
        return {} if worst is None else {WORST: worst}
