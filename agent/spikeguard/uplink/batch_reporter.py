"""What lay in an incident's batches: described beside the loop, told by rank 0.

When the server starts to watch closely, every rank takes the batches out of its ring, and those of
each step that follows until the server is content. A thread describes them. Of each step the rank
with the highest loss describes its part. One above 0 writes it to
`DIRECTORY/batches/rank-00001.jsonl`, from where rank 0 tells it: no rank waits for another. Where
ranks do not share the directory, those alone are told that rank 0 had.
"""

from __future__ import annotations

import json
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeguard.faults import Faults
from spikeguard.measure.batch_ring import BUCKETS, STEPS, BatchRing, Before, KeptItems, StepBatch
from spikeguard_protocol import (
    BatchDetail,
    ProtocolError,
    Record,
    TokenHistogram,
    from_json,
    to_json,
)
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
FOLDER = "batches"
WAITING = 128  # batches between the loop and the thread
FILE_BYTES = 2**20  # of one rank's file; it begins anew each time the server starts to watch
LOOK_S, PATIENCE_S = 0.5, 15.0  # rank 0, for another rank's file
SHOWN = 256  # tokens of the worst sequence that are decoded
BINS = min(MAX_BINS, BUCKETS.bit_length() + 1)
UNSEEN = 0.5  # occurrences, of a token that had none, when sequences are compared


class Taken(NamedTuple):
    """Batches that left the ring together."""

    batches: list[StepBatch]
    before: Before | None
    fresh: bool  # the server started to watch


class Wanted(NamedTuple):
    """What another rank describes."""

    since: float  # monotonic seconds
    rank: int
    place: tuple[int, int]  # segment and step


class BatchReporter:
    """One rank's. `pass_on` is the loop's, the rest the thread's."""

    def __init__(
        self,
        ring: BatchRing,
        home: Path,
        rank: int,
        attempt: str,
        put: Callable[[Record], None] | None,
        faults: Faults,
        name_batch: NameBatch | None = None,
        decode: Decode | None = None,
    ) -> None:
        """`put`: rank 0's way to the server."""
        self.ring, self._folder, self._rank = ring, home / FOLDER, rank
        self._attempt, self._put, self._faults = attempt, put, faults
        self._name_batch, self._decode = name_batch, decode
        self.on = ring.steps > 0 and (put is not None or rank > 0)
        named = self.on and name_batch is not None
        self.items = KeptItems(STEPS) if named else None
        self._watching = False
        self._waiting: deque[Taken] = deque(maxlen=WAITING)
        self._wanted: deque[Wanted] = deque(maxlen=WAITING)
        self._reference: Reference | None = None
        self._written = 0  # bytes of this rank's file
        self._wake, self._closing = Event(), Event()
        self._thread: Thread | None = None

    # ---- the loop ----------------------------------------------------------------------------

    def pass_on(self, step: int, worst_rank: int, watched: bool) -> None:
        """All ranks have told of `step`: take out what is to be told."""
        if worst_rank:
            self.ring.settle(step, worst_rank)
        fresh = watched and not self._watching
        self._watching = watched
        if not watched:
            return
        before = self.ring.before() if fresh else None
        self._waiting.append(Taken(self.ring.take(step), before, fresh))
        if self._thread is None:
            self._thread = Thread(target=self._work, name="spikeguard-batches", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self, within_s: float) -> None:
        """The attempt ends: what waits is told, as far as that takes no longer."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)

    # ---- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while not (self._closing.is_set() and not self._waiting):
            self._wake.wait(LOOK_S if self._wanted else None)
            self._wake.clear()
            with self._faults.shield("batches"):
                while self._waiting:
                    self._tell(self._waiting.popleft())
                self._look()
        with self._faults.shield("batches"):
            self._look()

    def _tell(self, taken: Taken) -> None:
        if taken.fresh:
            self._reference = reference_of(taken.before)
            self._written = 0
        for batch in taken.batches:
            if batch.worst_rank == self._rank:
                tell = self._write if self._put is None else self._put
                tell(self._described(batch))
            elif self._put is not None:
                wanted = Wanted(time.monotonic(), batch.worst_rank, (batch.segment, batch.step))
                self._wanted.append(wanted)

    def _described(self, batch: StepBatch) -> BatchDetail:
        if batch.event is not None:
            batch.event.synchronize()
        names, worst = self._names(batch.items), worst_of(batch, self._reference)
        kept = tuple(name[:MAX_NAME] for name in names[:MAX_NAMES])
        shown = batch.losses or batch.rows
        return BatchDetail(
            segment=batch.segment,
            step=batch.step,
            rank=self._rank,
            position=batch.position,
            names=kept,
            names_cut=len(names) - sum(map(operator.eq, names, kept)),
            sequences=sum(map(len, shown)),
            worst=worst.place if worst is not None else None,
            sequence_loss=worst.loss if worst is not None else None,
            snippet=self._text(worst.ids[:SHOWN])[:MAX_SNIPPET] or None if worst else None,
            histogram=self._histogram(batch.rows),
        )

    def _names(self, items: Iterable[object]) -> list[str]:
        """What the job calls `items`."""
        names: list[str] = []
        name = self._name_batch
        if name is None:
            return names
        for item in items:
            with self._faults.shield_thread("name_batch"):
                given = name(item)
                each = (given,) if isinstance(given, str | int) else given
                names += [n if isinstance(n, str) else str(operator.index(n)) for n in each]
        return names

    def _text(self, ids: list[int]) -> str:
        """What the job makes of `ids`; "" where it gives no function, or that fails."""
        if self._decode is not None and ids:
            with self._faults.shield_thread("decode"):
                text = self._decode(ids)
                if not isinstance(text, str):
                    raise TypeError(f"decode returns a str, not {type(text).__name__}")
                return text
        return ""

    def _histogram(self, rows: Sequence[Tensor]) -> TokenHistogram | None:
        """The tokens of `rows`; None without any, or without batches before."""
        before = self._reference
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
        texts = [self._text([id])[:MAX_TOKEN_TEXT] for id in named]
        return TokenHistogram(
            counted=len(tokens),
            before=before.batches,
            before_last=before.last,
            bins=tuple(bins.tolist()),
            bins_before=before.bins,
            ids=tuple(named),
            shares=tuple(shares[most].tolist()),
            shares_before=tuple(shares_before[most].tolist()),
            texts=tuple(texts) if self._decode is not None else (),
        )

    # ---- the files of other ranks ----------------------------------------------------------------

    def _write(self, detail: BatchDetail) -> None:
        """For rank 0 to read."""
        entry = {"attempt": self._attempt, "detail": to_json(detail)}
        line = json.dumps(entry).encode() + b"\n"
        if self._written + len(line) > FILE_BYTES:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(self._rank).open("ab" if self._written else "wb") as file:
            self._written += file.write(line)

    def _look(self) -> None:
        """Tell what other ranks have written of the steps of which they had the highest loss."""
        now, waiting = time.monotonic(), list(self._wanted)
        self._wanted.clear()
        found = {rank: self._read(rank) for rank in {each.rank for each in waiting}}
        for wanted in waiting:
            detail = found[wanted.rank].get(wanted.place)
            if detail is not None and self._put is not None:
                self._put(detail)
            elif now - wanted.since < PATIENCE_S:
                self._wanted.append(wanted)

    def _read(self, rank: int) -> dict[tuple[int, int], BatchDetail]:
        found: dict[tuple[int, int], BatchDetail] = {}
        with suppress(OSError), self._file(rank).open("rb") as file:
            for line in file.read(FILE_BYTES).splitlines():
                with suppress(ValueError, KeyError, TypeError, ProtocolError):  # cut short
                    entry = json.loads(line)
                    detail = from_json(BatchDetail, entry["detail"])
                    if entry["attempt"] == self._attempt and detail.rank == rank:
                        found[detail.segment, detail.step] = detail
        return found

    def _file(self, rank: int) -> Path:
        """Where a rank writes for rank 0."""
        return self._folder / f"rank-{rank:05}.jsonl"


# ---- what a batch holds, beside the batches before it -------------------------------------------


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
    # mean nats of its tokens by how often they occurred before
    counts = (before.counts[r.long() & (BUCKETS - 1)].clamp(min=UNSEEN) for r in sequences)
    rarity = [-float((each / before.total).log().mean()) for each in counts]
    place = max(range(len(rarity)), key=rarity.__getitem__)
    return Worst(place, None, sequences[place].tolist())
