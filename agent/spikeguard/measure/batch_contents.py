"""What a batch holds, beside the batches before it: histogram, the tokens that stand out, the worst
sequence.

Law: pure, on the host, for a thread beside the loop. Ids share a bucket by their lowest bits, as in
`tokens`: exact up to 2^18 ids.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeguard.measure.batch_ring import Before, StepBatch
from spikeguard.measure.signals.tokens import BUCKETS
from spikeguard_protocol import TokenHistogram
from spikeguard_protocol.messages import (
    MAX_BINS,
    MAX_NAME,
    MAX_NAMES,
    MAX_SNIPPET,
    MAX_TOKEN_TEXT,
    MAX_TOKENS,
)

Decode = Callable[[list[int]], str]  # token ids -> text
NameBatch = Callable[[Any], Any]  # an item of the loader -> its name or names
LOOKED_AT = 10_000  # names of one item; the rest of what may be endless is not even counted
SHOWN = 256  # tokens of the worst sequence that are decoded
BINS = min(MAX_BINS, BUCKETS.bit_length() + 1)
UNSEEN = 0.5  # occurrences, of a token that had none, when sequences are compared


@dataclass(slots=True)
class Names:
    """The names of one position, in the order of its items."""

    kept: list[str] = field(default_factory=list)
    cut: int = 0  # left away, or shortened

    def add(self, given: Any) -> None:
        """Take up what one item is called; raise TypeError for what cannot name anything."""
        for name in islice(_each(given), LOOKED_AT):
            fits = len(self.kept) < MAX_NAMES
            self.cut += not fits or len(name) > MAX_NAME
            if fits:
                self.kept.append(name[:MAX_NAME])


def _each(given: Any) -> Iterator[str]:
    if isinstance(given, str | int):
        return iter((str(given),))
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"a name is a str or several of them, not {type(given).__name__}")
    return map(_name, given)


def _name(one: Any) -> str:
    return one if isinstance(one, str) else str(operator.index(one))


class Reference(NamedTuple):
    """The batches before, made ready once for all that is compared with them."""

    counts: Tensor  # (BUCKETS,)
    total: float
    bin_of: Tensor  # (BUCKETS,) of each token, by its rank among them
    bins: tuple[float, ...]  # shares
    batches: int
    last: int  # step


class Worst(NamedTuple):
    """The sequence that stands out."""

    place: int  # among those of this rank
    loss: float | None
    ids: list[int]


def reference_of(before: Before | None) -> Reference | None:
    """None where there were no batches before."""
    if before is None:
        return None
    if before.event is not None:
        before.event.synchronize()
    counts = before.counts
    total = float(counts.sum())
    seen = counts.nonzero().reshape(-1)
    order = seen[counts[seen].argsort(descending=True)]
    bin_of = torch.zeros(BUCKETS, dtype=torch.long)
    ranks = torch.arange(1, len(order) + 1, dtype=torch.float64)
    bin_of[order] = ranks.log2().floor().long() + 1
    shares = torch.zeros(BINS, dtype=torch.float64)
    shares.index_add_(0, bin_of[order], counts[order].double() / total)
    return Reference(counts, total, bin_of, tuple(shares.tolist()), before.batches, before.last)


def histogram_of(
    rows: Sequence[Tensor], before: Reference | None, decode: Decode | None
) -> TokenHistogram | None:
    """The tokens of `rows`; None without any, or without batches before."""
    if not rows or before is None:
        return None
    tokens = torch.cat([each.reshape(-1) for each in rows]).long()
    ids, counts = tokens.unique(return_counts=True)
    buckets = ids & (BUCKETS - 1)
    shares = counts.double() / len(tokens)
    bins = torch.zeros(BINS, dtype=torch.float64)
    bins.index_add_(0, before.bin_of[buckets], shares)
    shares_before = before.counts[buckets].double() / before.total
    most = (shares - shares_before).topk(min(MAX_TOKENS, len(ids))).indices
    named = [int(id) for id in ids[most]]
    texts = [decode([id])[:MAX_TOKEN_TEXT] for id in named] if decode is not None else []
    return TokenHistogram(
        counted=len(tokens),
        before=before.batches,
        before_last=before.last,
        bins=tuple(bins.tolist()),
        bins_before=before.bins,
        ids=tuple(named),
        shares=tuple(shares[most].tolist()),
        shares_before=tuple(shares_before[most].tolist()),
        texts=tuple(texts),
    )


def worst_of(batch: StepBatch, before: Reference | None) -> Worst | None:
    """The sequence with the highest loss or, without losses, with the rarest tokens."""
    sequences = [row for rows in batch.rows for row in rows.unbind()]
    if batch.losses:
        losses = torch.cat(batch.losses)
        ranked = torch.where(losses.isnan(), math.inf, losses)  # a NaN is the worst there is
        place = int(ranked.argmax())
        ids = sequences[place].tolist() if len(sequences) == len(losses) else []
        return Worst(place, float(losses[place]), ids)
    if not sequences or before is None:
        return None
    rarity = [_rarity(row, before) for row in sequences]
    place = max(range(len(rarity)), key=rarity.__getitem__)
    return Worst(place, None, sequences[place].tolist())


def snippet_of(worst: Worst | None, decode: Decode | None) -> str | None:
    """The beginning of it as text; None where the job tells none."""
    if worst is None or decode is None or not worst.ids:
        return None
    return decode(worst.ids[:SHOWN])[:MAX_SNIPPET]


def sequences_in(batch: StepBatch) -> int:
    """How many were shown."""
    shown = batch.losses or batch.rows
    return sum(len(each) for each in shown)


def _rarity(row: Tensor, before: Reference) -> float:
    """Mean nats of its tokens by how often they occurred before."""
    counts = before.counts[row.long() & (BUCKETS - 1)].clamp(min=UNSEEN)
    return -float((counts / before.total).log().mean())
