"""Statistics of a step's tokens: the entropy of their histogram, and how many are new.

Law: the device counts, the host waits for nothing. Ids are counted in `BUCKETS` buckets, by their
lowest bits: exactly up to that size of vocabulary, beyond it as a sketch in which few ids share a
bucket. Out-of-range and negative ids have a bucket too, so a bad id cannot fault the device.
Cost: work in proportion to the tokens, none in proportion to the vocabulary; 1.3 MB on the device
and 8 bytes a token of one step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spikeguard_protocol import OptionalSignal

BUCKETS = 2**18  # a power of two, above the vocabularies in use
MOST = 2**22  # tokens of one rank's step; what is shown beyond is not counted
ENTROPY, UNSEEN = OptionalSignal.TOKEN_ENTROPY.value, OptionalSignal.UNSEEN_TOKENS.value


class TokenStatistics:
    """What was shown since the last step, and which buckets were ever met."""

    def __init__(self) -> None:
        self._shown: list[Tensor] = []
        self._held = 0
        self._counts: Tensor | None = None  # (BUCKETS,) int32, all 0 between two steps
        self._seen: Tensor | None = None  # (BUCKETS,) bool

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
        counts, seen = self._tables(tokens.device)
        counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))
        # sum of -p log p, each token bringing its own share: no pass over the buckets
        entropy = math.log(len(tokens)) - counts.index_select(0, tokens).float().log().mean()
        counts.index_fill_(0, tokens, 0)
        unseen = 1.0 - seen.index_select(0, tokens).float().mean()
        seen.index_fill_(0, tokens, True)
        return {ENTROPY: entropy, UNSEEN: unseen}

    def forget(self) -> None:
        """Drop what was shown since the last step."""
        self._shown, self._held = [], 0

    def state_dict(self) -> dict[str, Any]:
        """Which tokens are known: goes into snapshots and checkpoints (256 kB)."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Know what was known then."""
        saved, self._seen = state["seen"], None
        if saved is not None and saved.shape == (BUCKETS,):
            self._seen = saved.to(self._counts.device) if self._counts is not None else saved

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._counts is None or self._counts.device != device:
            self._counts = torch.zeros(BUCKETS, dtype=torch.int32, device=device)
        if self._seen is None:
            self._seen = torch.zeros(BUCKETS, dtype=torch.bool, device=device)
        elif self._seen.device != device:
            self._seen = self._seen.to(device)
        return self._counts, self._seen
