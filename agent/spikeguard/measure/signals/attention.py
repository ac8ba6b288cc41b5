"""The largest attention logit: what goes into the softmax, before it.

Logits that grow are a known way into divergence (arXiv 2302.05442, 2309.14322), and a fused kernel
shows them to nobody. So there are two ways to see them: scores that the model computes itself
(`see`); queries and keys on their way into a fused kernel (`see_of`), of which some rows are
multiplied once more.
Law: only at steps for which `on` is set; nothing is read on the host, nothing is raised.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spikeguard_protocol import OptionalSignal

LARGEST = OptionalSignal.ATTENTION_LOGIT_MAX.value
QUERIES = 16  # of each sequence and head, evenly spread, the last among them


class AttentionLogits:
    """The largest one shown since the last step."""

    def __init__(self) -> None:
        self.on = False
        self._largest: Tensor | None = None

    def see(self, scores: Tensor) -> None:
        """Note scores in any shape, masked ones -inf: reads them once."""
        if self.on and scores.numel():
            self._note(scores.detach().amax().float())

    def see_of(
        self, queries: Tensor, keys: Tensor, scale: float | None = None, causal: bool = True
    ) -> None:
        """Note those of `QUERIES` rows: (B, H, T, D) each, keys also with fewer heads.

        `scale`: 1 / sqrt(D), as fused kernels have it. `causal`: query T looks at keys up to T.
        """
        if not (self.on and queries.numel() and keys.numel()):
            return
        queries, keys = queries.detach(), keys.detach()
        length, width = queries.shape[-2:]
        rows = spread_rows(length, queries.device)
        chosen = queries.index_select(-2, rows).float()
        chosen = chosen * (width**-0.5 if scale is None else scale)
        shared = queries.shape[-3] // keys.shape[-3]
        if shared > 1:  # grouped queries: neighbouring heads look at the same keys
            chosen = chosen.unflatten(-3, (keys.shape[-3], shared)).flatten(-3, -2)
        scores = chosen @ keys.float().transpose(-1, -2)
        if causal:
            at = (rows + (keys.shape[-2] - length)).repeat(shared)  # a cache's keys come first
            hidden = torch.arange(keys.shape[-2], device=scores.device) > at[:, None]
            scores = scores.masked_fill(hidden, -math.inf)
        self._note(scores.amax())

    def take(self) -> dict[str, Tensor]:
        """(); then start anew."""
        largest, self._largest = self._largest, None
        return {} if largest is None else {LARGEST: largest}

    def _note(self, largest: Tensor) -> None:
        known = self._largest
        self._largest = largest if known is None else torch.maximum(known, largest)


def spread_rows(length: int, device: torch.device) -> Tensor:
    """At most `QUERIES` places of `length`, (R,) int64, evenly spread, the last among them."""
    count = min(QUERIES, length)
    return torch.arange(1, count + 1, device=device) * length // count - 1
