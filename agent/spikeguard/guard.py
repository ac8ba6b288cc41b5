"""What the loop holds: the public face, and the order of things at a step boundary.

`step` notes its failures without `shield`, since a `try` that catches nothing costs nothing. Its
floor is 13 calls, 3 us where nothing runs between two steps (2.5 GHz); behind a training step that
leaves the caches cold it takes ten times as long.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import GEN_CLOSED, getgeneratorstate
from operator import attrgetter
from threading import get_ident
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from spikeguard.commands.executor import Executor
from spikeguard.errors import Stopped
from spikeguard.loop.attempt import (
    Endings,
    examine,
    introduce,
    introduction,
    learn_from_loop,
    resume,
    resume_at,
    warn_of_unused,
)
from spikeguard.loop.context import GuardState, Parts, state_of
from spikeguard.loop.exchange import OrderPolling, Reporter, Write
from spikeguard.loop.optimizer_hooks import STRETCH, OptimizerHooks
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import parameters
from spikeguard.ranks.rank_group import leave_world
from spikeguard.ranks.vote import OTHER_DATA
from spikeguard_protocol import AttemptEnded, Verb

Batch = TypeVar("Batch")
Loss = TypeVar("Loss", bound=float | Tensor)
Number = float | Tensor | None
MARK_LEAST, MARK_MOST = 10, 100  # positions between two copies of a loader's state
ASKED: Final = 1_000  # passes that a loop may begin after a stop, each with an evaluation perhaps

# By what is watched. Two guards would hook an optimizer twice, and each would count the other's
# steps; two of one model, with an optimizer each, would take its weights back with the moments of
# one alone. Only pointed at from here: a guard lives as long as the loop holds it.
_GUARDS: Final[WeakKeyDictionary[Any, ref[Guard]]] = WeakKeyDictionary()


def guard_of(watched: torch.nn.Module | torch.optim.Optimizer) -> Guard | None:
    """The guard of a model or an optimizer, as `attach` was given it; None once it has finished."""
    found = _GUARDS.get(watched)
    guard = None if found is None else found()
    return None if guard is None or guard.ended else guard


class _Batches(Iterator[Batch]):
    """What `Guard.batches` returns. `for` runs on the generator itself."""

    def __init__(self, begin: Callable[[], Generator[Batch]]) -> None:
        self._begin, self._pass = begin, begin()

    def __iter__(self) -> Iterator[Batch]:
        if getgeneratorstate(self._pass) == GEN_CLOSED:
            self._pass = self._begin()
        return self._pass

    def __next__(self) -> Batch:
        return next(self._pass)


class Guard:
    """Watches one training loop and acts in it. Made by `attach()`; one per model."""

    def __init__(
        self,
        parts: Parts,
        job: Job,
        registered: Sequence[Any],
        forward: Write | None = None,
    ) -> None:
        """`registered`: by which of the loop's objects the guard can be found."""
        self._p = parts
        self._job = job
        self._reporter = Reporter(parts, forward)
        self._report = parts.recovery.report = self._reporter.report
        self._executor = Executor(
            parts,
            lambda: self._optimizers.unseen(parts.feed.steps),
            self._report,
            lambda: self._reporter.drain(self._executor.announced),
        )
        self._snapshots = parts.cadence
        parts.collector.snapshot_due = self._snapshots.due
        self._polling = OrderPolling(parts, self._reporter, self._executor)
        self._together = parts.agreement
        self._add = self._reporter.add if self._together else self._reporter.add_alone
        saved = parts.recovery.checkpoints
        # something is to be saved at some of its multiples, at no other step
        every = math.gcd(self._snapshots.finest, saved.every if saved is not None else 0)
        self._save_every = every or sys.maxsize
        self._optional, self._own = parts.collector.optional, parts.collector.own
        self._begun = self._ended = False
        self._unfed = False  # began without `batches`
        self._asked = 0  # passes since a stop
        self._process, self._thread = os.getpid(), get_ident()
        parts.feed.mark_every = min(max(MARK_LEAST, self._save_every), MARK_MOST)
        self._optimizers = OptimizerHooks(
            job.optimizers,
            parts.collector,
            parts.rates,
            parts.progress,
            parts.usage,
            parts.faults,
        )
        self._several = self._optimizers.several
        self._endings = Endings(self._cut_short, parts.settings)
        self._guarded = tuple(registered)
        for each in self._guarded:
            _GUARDS[each] = ref(self)

    @property
    def steps(self) -> int:
        """Optimizer steps completed; goes back in a rollback."""
        return self._p.progress.steps

    @property
    def position(self) -> int:
        """The next position in the data order."""
        return self._p.feed.position

    @property
    def stopped(self) -> bool:
        """A stop was carried out: `batches()` ends."""
        return self._p.feed.stopped

    @property
    def ended(self) -> bool:
        """Whether it has finished, or belongs to a process that forked this one."""
        return self._ended or os.getpid() != self._process

    @property
    def attempt(self) -> str:
        """This start of the run's processes: 16 hexadecimal digits."""
        return self._p.progress.attempt

    @property
    def capabilities(self) -> tuple[Verb, ...]:
        """The commands that can be carried out in this loop."""
        return self._executor.capabilities()

    @property
    def faults(self) -> dict[str, int]:
        """How often the agent itself failed, by place. Nothing of it reached the loop."""
        return dict(self._p.faults.counts)

    def state(self) -> GuardState:
        """What it stands at and holds now, copied; in the loop's thread, between two steps."""
        return state_of(self._p)

    def resume(self, step: int | None = None) -> int:
        """Restore the newest checkpoint that is not abandoned; returns its step, 0 if none.

        Call it before the first step, on all ranks. Raises `ResumeError` if there are checkpoints
        and none can be restored: to begin at zero would hide that.
        `step`: the loop has restored that step itself, by a checkpoint of its own, and its data go
        on with the next one's batch. Nothing is restored then; `steps` and `position` begin there.
        """
        return resume(self._p) if step is None else resume_at(self._p, step)

    def epochs(self, count: int = sys.maxsize) -> Iterator[int]:
        """Yield the passes over the data from 0 to `count`; after `resume()`, from where it stands.

        Samplers, loader and dataset that have `set_epoch` are told the pass, unless the loop does.
        A rollback into an earlier pass yields the later ones again.
        """
        yield from self._p.feed.epochs(count)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield micro-batches of `loader`; leaves out what was skipped, goes back in a rollback.

        Iterated again after its end it begins the next pass, as `loader` does.
        Rollback needs a loader with `state_dict()` and `load_state_dict()`, or one that can be
        iterated anew from the random numbers its pass began with. Raises `ResumeError` where the
        run stands in a later pass over an iterator, which can be read once.
        """
        return _Batches(lambda: self._pass(loader))

    def _pass(self, loader: Iterable[Batch]) -> Generator[Batch]:
        feed = self._p.feed
        if feed.stopped:
            self._end_if_endless()
        if os.getpid() != self._process:  # a worker's: nobody there makes steps
            yield from loader
        elif feed.is_beside(loader):
            yield from feed.batches_beside(loader)
        else:
            feed.take(loader)
            self._begin()
            steps = feed.steps
            yield from feed.batches()
            if feed.steps > steps:  # an evaluation makes none
                self._end_pass()

    def _end_if_endless(self) -> None:
        """A loop over passes without end, `cycle(loader)`, would ask for items for ever."""
        self._asked += 1
        if self._asked > ASKED:
            self.finish()
            raise Stopped(f"the run was stopped, and its loop began {ASKED:,} passes since")

    def _end_pass(self) -> None:
        """This rank's loader is at its end; others may go on, as under torch's `Join`."""
        if self._together is None or self._ended:
            return
        if get_ident() == self._thread:  # elsewhere the loop may be making a step
            self._polling.leave(self._together)

    def loss(self, loss: Loss, weight: Number = None, scale: Number = None) -> Loss:
        """Note one micro-batch's loss, mean nats per token, a tensor or a number; returns it.

        `weight`: its tokens, where micro-batches or ranks differ in size. `scale`: what multiplies
        `loss` to make it that mean, where the loop has divided it already: `micro_batches` for
        `loss / micro_batches`.
        """
        with self._p.faults.shield("loss"):
            self._p.collector.losses.add(loss, weight, scale)
            self._p.usage.look_at_loss(loss)
        return loss

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Add signals of your own to the step that is being made: numbers, or tensors ().

        At most 16 names of letters, digits, `.`, `_` and `-`. What cannot be taken is left out and
        counted in `faults`, once for each name.
        """
        with self._p.faults.shield("log"):
            self._own.log(values)

    def tokens(self, ids: Tensor) -> Tensor:
        """Show one micro-batch's token ids, whole numbers in any shape; returns the same tensor.

        `token_entropy` and `unseen_tokens` are made of a step's.
        """
        with self._p.faults.shield("tokens"):
            self._optional.show_tokens(ids)
        return ids

    def sequence_losses(self, losses: Tensor) -> Tensor:
        """Show the loss of each sequence of one micro-batch; returns the same tensor.

        Mean nats per token, (B,), or nats of each token, (B, T). `loss_sequence_max` is the worst.
        """
        with self._p.faults.shield("sequence_losses"):
            self._optional.show_sequences(losses)
        return losses

    def clip_grad_norm_(self, max_norm: float | None) -> Tensor:
        """Like `torch.nn.utils.clip_grad_norm_` over the model's parameters; None only measures.

        Under `attach(clip=...)` that rule clips, and to `max_norm` at most.
        Returns the global L2 norm before clipping, () on the device; NaN, with the gradients as
        they are and a fault counted, where neither the agent nor torch can take it.
        """
        with self._p.faults.shield("clip"):
            return self._p.collector.clip(max_norm)
        return self._clip_by_torch(math.inf if max_norm is None else max_norm)

    def _clip_by_torch(self, limit: float) -> Tensor:
        """NaN where that fails too, or this rank holds a part of the model: its own norm is not the
        job's, and the others make no reduction for it."""
        held = parameters(self._job.parts)
        if not self._job.topology.parted:
            with self._p.faults.shield("clip"):
                return torch.nn.utils.clip_grad_norm_(held, limit)
        return torch.full((), math.nan, device=held[0].device)

    @property
    def mitigations(self) -> tuple[str, ...]:
        """Names of those that are on."""
        return self._p.mitigations.on

    def step(self) -> None:
        """Call once after each optimizer step, when gradients are spent.

        `steps` is the counter to go by: one of the loop's own does not go back with the run.
        """
        if not self._begun:
            self._begin()
        parts = self._p
        progress = parts.progress
        segment = progress.segment
        progress.steps = steps = progress.steps + 1
        try:
            position = parts.feed.finish_step()
            if parts.rates.lent:
                parts.rates.after_step()
            if self._several:
                self._optimizers.finish_step(steps)
            if parts.feed.fingerprints.differs is not None:
                self._note_other_data()
            self._add(parts.collector.finish_step(steps, segment, position))
        except Exception as error:
            parts.faults.note("collect", error)
            with suppress(Exception):
                parts.collector.reset()
        try:
            if self._together is not None:
                self._polling.together(self._together)
            elif parts.inbox.changed:
                self._polling.alone()
        except Exception as error:
            parts.faults.note("orders", error)
        try:
            if parts.mitigations.busy:
                parts.mitigations.settle()
        except Exception as error:
            parts.faults.note("mitigation", error)
        try:
            if steps % self._save_every == 0 or parts.recovery.writing:
                self._save(segment)
        except Exception as error:
            parts.faults.note("save", error)
        try:
            if parts.feed.unusual or parts.usage.news or not steps % STRETCH:
                self._look_at_loop()
        except Exception as error:
            parts.faults.note("begin", error)

    def checkpoint(self) -> str | None:
        """Save a checkpoint now, at a step boundary, on all ranks; its name, None if it failed."""
        with self._p.faults.shield("checkpoint"):
            return self._p.recovery.checkpoint()
        return None

    def finish(self, reason: str | None = None) -> None:
        """Say that the attempt ended, send what can be sent within `flush_s`, undo the hooks.

        `reason`: by default `finished`, or `stopped` after a stop was carried out.
        """
        if self.ended:
            return
        parts = self._p
        for end in (
            self._endings.undo,
            lambda: self._reporter.drain(self._executor.announced, ending=True),
            lambda: parts.recovery.settle(parts.world.last_patience.total_seconds()),
            lambda: leave_world(parts.world),
            lambda: self._cut_short(reason or ("stopped" if self.stopped else "finished")),
            *map(attrgetter("remove"), self._optimizers.handles),
            lambda: [_GUARDS.pop(each, None) for each in self._guarded],
            self._optional.end,
            parts.rates.after_step,
            parts.feed.release,
        ):
            with parts.faults.shield("finish"):
                end()

    def _cut_short(self, reason: str) -> None:
        """Flush and end; meets no other rank, so a signal handler may call it."""
        if self.ended:
            return
        self._ended = True
        parts, began = self._p, time.monotonic()
        with parts.faults.shield("finish"):
            parts.recovery.staging.close()
        with parts.faults.shield("finish"):
            parts.batches.close(parts.settings.flush_s / 2)
        with parts.faults.shield("finish"):
            if self._begun:
                self._report(AttemptEnded(reason))
            left_s = max(0.0, parts.settings.flush_s - (time.monotonic() - began))
            if parts.sender is not None:
                parts.sender.finish(left_s)
            elif parts.outbox is not None:  # all stays on disk; at once, unless the disk hangs
                parts.outbox.close(left_s, ended=True)
        with parts.faults.shield("finish"):
            self._reporter.close()
            parts.doctor.tell()  # what the last steps showed, read by now

    def _note_other_data(self) -> None:
        """A batch was read again and was another one: all ranks hear of it, and the server."""
        parts = self._p
        if not (said := parts.feed.found_other()):
            return
        parts.faults.note("data", said)
        parts.collector.note(OTHER_DATA, 1.0)
        if self._together is None:
            self._executor.correct_rollback()

    # ---- saving ----------------------------------------------------------------------------

    def _save(self, segment: int) -> None:
        """What is due at this boundary, unless the run has just gone back."""
        progress, recovery = self._p.progress, self._p.recovery
        if progress.segment != segment or self._executor.returning:
            return
        if recovery.takes_snapshots and self._snapshots.due(progress.steps):
            timed = self._snapshots.timed(progress.steps, lambda: recovery.staging.ready)
            with self._p.faults.shield("snapshot"), timed:
                recovery.snapshot()
        if self._together is None:
            self._polling.adapt(self._snapshots.wanted())
        every = recovery.checkpoints.every if recovery.checkpoints is not None else 0
        if every and progress.steps % every == 0:
            with self._p.faults.shield("checkpoint"):
                recovery.checkpoint_due()
        recovery.settle()

    def _look_at_loop(self) -> None:
        """What nobody was told of yet: the log and the server are."""
        parts = self._p
        if examine(parts, self._optimizers.updates) and learn_from_loop(parts):
            self._report(introduction(parts, self._executor.capabilities()))

    def _begin(self) -> None:
        """Tell the server of this attempt, once, when its loop is known."""
        if self._begun:
            self._p.feed.unusual |= self._unfed and self._p.feed.in_use
            self._unfed = False
            return
        self._unfed = not self._p.feed.in_use
        self._begun = True
        with self._p.faults.shield("begin"):
            warn_of_unused(self._p)
            self._p.mitigations.take_up()
            introduce(self._p, self._executor.capabilities, self._report)
