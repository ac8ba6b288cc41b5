"""Which batch near an onset to look at first, and what it shows, as a sentence.

The onset's own batch comes first, of its ranks the one with the highest loss; the batches around it
are what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spikeguard_protocol import BatchDetail, TokenHistogram

NEAR = 8  # steps on either side of an onset whose batches stay with the incident
MANY_NEW = 0.02  # share of tokens that no batch before held, that is worth a word
MUCH_MORE = 3.0  # times its share before, of a token that stands out
LEAST_SHARE = 0.02  # of a batch, that such a token makes up


def onset_batch(batches: Sequence[BatchDetail], onset_step: int) -> BatchDetail | None:
    """The batch of the onset, of the rank that it hurt most; else of the step nearest to it."""
    if not batches:
        return None
    nearest = min((abs(b.step - onset_step), b.step) for b in batches)[1]
    here = sorted((b for b in batches if b.step == nearest), key=lambda batch: batch.rank)
    losses = [-math.inf if b.sequence_loss is None else b.sequence_loss for b in here]
    return here[int(np.argmax(losses))]  # NaN is the highest


def worst_sequence(batch: BatchDetail) -> str | None:
    """The sequence that stands out, as the beginning of a sentence."""
    if batch.worst is None:
        return None
    which = f"Sequence {batch.worst + 1} of {batch.sequences} on rank {batch.rank}"
    if batch.sequence_loss is None:
        return f"{which} has the rarest tokens"
    if not math.isfinite(batch.sequence_loss):
        return f"{which} has a loss that is not finite"
    return f"{which} has the highest loss, {batch.sequence_loss:.4g} nats a token"


def contrast(histogram: TokenHistogram | None) -> str | None:
    """How the tokens differ from those of the batches before; None where nothing is known."""
    if histogram is None:
        return None
    found, new = list[str](), histogram.bins[0] if histogram.bins else 0.0
    if new >= MANY_NEW:
        found.append(f"{new:.1%} of the batch's tokens had not occurred in them")
    if histogram.ids:
        share, before = histogram.shares[0], histogram.shares_before[0]
        text = f" ({histogram.texts[0]!r})" if histogram.texts and histogram.texts[0] else ""
        if share >= max(LEAST_SHARE, MUCH_MORE * before):
            token = f"token {histogram.ids[0]}{text}"
            found.append(f"{token} makes up {share:.1%} of it, {before:.1%} before")
    against = f"the {histogram.before} batches before step {histogram.before_last + 1}"
    return f"Against {against}: {'; '.join(found) or 'the usual tokens in their usual shares'}"
