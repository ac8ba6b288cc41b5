"""What the loop holds: the public face, and the order of things at a step boundary.

Law: every call is shielded; a failure of the agent's own is counted and logged, never raised.
The loop's own errors (the loader's, the model's) pass through untouched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from spikeguard.agreement import Agreed, Agreement, Word
from spikeguard.clipping import Rule
from spikeguard.closures import Arguments, after_closure
from spikeguard.collector import Collector, Row
from spikeguard.data import DataFeed
from spikeguard.endings import Endings
from spikeguard.errors import AttemptAborted, ResumeError
from spikeguard.executor import Executor
from spikeguard.faults import Faults, log
from spikeguard.forward import Forward
from spikeguard.journal import Journal
from spikeguard.learning_rate import ScaledRates
from spikeguard.mailbox import Mailbox
from spikeguard.offline import Shelf
from spikeguard.outbox import Outbox
from spikeguard.progress import Progress
from spikeguard.readback import DEPTH
from spikeguard.recovery import Recovery
from spikeguard.sender import Sender
from spikeguard.settings import Settings
from spikeguard.targets import Target
from spikeguard.world import World, all_agree, in_step, leave_world, share_text
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    CommandResult,
    LayerNorms,
    Record,
    Samples,
    SegmentReason,
    SegmentStarted,
    Signal,
    Verb,
)
from spikeguard_protocol.messages import MAX_LAYERS

Batch = TypeVar("Batch")


@dataclass(slots=True)
class Parts:
    """What `attach()` has put together."""

    world: World
    settings: Settings
    progress: Progress
    feed: DataFeed
    rates: ScaledRates
    collector: Collector
    recovery: Recovery
    journal: Journal
    mailbox: Mailbox
    faults: Faults
    agreement: Agreement | None
    outbox: Outbox | None  # rank 0
    sender: Sender | Shelf | None  # without a server, what is said is kept
    tokens_per_step: int | None
    facts: dict[str, str]  # optimizer, betas, ... for the record
    version: str


class Guard:
    """Watches one training loop and acts in it. Made by `attach()`; one per optimizer."""

    def __init__(
        self, parts: Parts, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._p, self._model = parts, model
        self._executor = Executor(
            parts.world,
            parts.progress,
            parts.feed,
            parts.rates,
            parts.recovery,
            parts.journal,
            parts.mailbox,
            self._report,
            self._drain,
            parts.faults,
        )
        self._rows: deque[Row] = deque()
        self.forward: Forward | None = None
        self._begun = self._ended = False
        self._last_step_at: float | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_optimizer),
            optimizer.register_step_post_hook(self._after_optimizer),
        ]
        self._endings = Endings(self._cut_short, parts.settings.handle_sigterm)

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

    def resume(self) -> int:
        """Restore the newest checkpoint that is not abandoned; returns its step, 0 if none.

        Call it before the first step, on all ranks. Raises `ResumeError` if there are checkpoints
        and none can be restored: to begin at zero would hide that.
        """
        problems: list[str] = []
        for target in self._shared_candidates():
            problem = self._resumed_from(target)
            if problem is None:
                return self.steps
            log.warning("checkpoint %s was passed over: %s", target.name, problem)
            problems.append(f"{target.name}: {problem}")
        if problems:
            raise ResumeError(
                "no checkpoint could be restored; repair one or point CheckpointDirectory at an "
                f"empty folder to begin anew. {'; '.join(problems)}"
            )
        self._p.recovery.take_up_scale(None)
        return 0

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield micro-batches of `loader`; leaves out what was skipped, goes back in a rollback.

        Rollback needs a loader with `state_dict()` and `load_state_dict()`, or one that can be
        iterated anew from the random numbers its pass began with.
        """
        self._p.feed.in_use = True
        with self._p.faults.shield("begin"):
            self._begin()
        yield from self._p.feed.batches(loader)

    def loss(self, loss: Tensor, weight: float | Tensor | None = None) -> Tensor:
        """Note one micro-batch's loss, mean nats per token; returns the same tensor.

        `weight`: its tokens, where micro-batches or ranks differ in size.
        """
        with self._p.faults.shield("loss"):
            self._p.collector.losses.add(loss, weight)
        return loss

    def clip_grad_norm_(self, max_norm: float | None) -> Tensor:
        """Like `torch.nn.utils.clip_grad_norm_` over the model's parameters; None only measures.

        Returns the global L2 norm before clipping, () on the device.
        """
        with self._p.faults.shield("clip"):
            return self._p.collector.clip(max_norm)
        limit = float("inf") if max_norm is None else max_norm
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)

    def clip_(self, rule: Rule) -> Tensor:
        """Clip by `Fixed`, `ZClip`, `AdaGC` or `Hybrid` (`spikeguard.clipping`); one rule a loop.

        What it has learnt goes back in a rollback. Returns what `clip_grad_norm_` does.
        """
        with self._p.faults.shield("clip"):
            return self._p.collector.clip_by(rule)
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), float("inf"))

    def step(self) -> None:
        """Call once after each optimizer step, when gradients are spent."""
        faults, progress = self._p.faults, self._p.progress
        with faults.shield("begin"):
            self._begin()
        segment = progress.segment
        with faults.shield("rates"):
            self._p.rates.after_step()
        progress.steps += 1
        position = self._p.feed.finish_step()
        self._deliver(self._row(position))
        if progress.segment == segment:
            with faults.shield("save"):
                self._save()

    def checkpoint(self) -> str | None:
        """Save a checkpoint now, at a step boundary, on all ranks; its name, None if it failed."""
        with self._p.faults.shield("checkpoint"):
            return self._p.recovery.checkpoint()
        return None

    def finish(self, reason: str | None = None) -> None:
        """Say that the attempt ended, send what can be sent within `flush_s`, undo the hooks.

        `reason`: by default `finished`, or `stopped` after a stop was carried out.
        """
        if self._ended:
            return
        self._endings.undo()
        with self._p.faults.shield("finish"):
            self._drain()
        with self._p.faults.shield("finish"):
            leave_world(self._p.world)
        self._cut_short(reason or ("stopped" if self.stopped else "finished"))
        for hook in self._hooks:
            hook.remove()
        with self._p.faults.shield("finish"):
            self._p.rates.after_step()

    def _cut_short(self, reason: str) -> None:
        """Flush and end; meets no other rank, so a signal handler may call it."""
        if self._ended:
            return
        self._ended = True
        with self._p.faults.shield("finish"):
            if self._begun:
                self._report(AttemptEnded(reason))
            if self._p.sender is not None:
                self._p.sender.finish(self._p.settings.flush_s)
        if self.forward is not None:
            with self._p.faults.shield("finish"):
                self.forward.close()

    def _report(self, record: Record) -> None:
        if self._p.outbox is not None and self._p.sender is not None:
            self._p.outbox.put(record)
            if isinstance(record, CommandResult | SegmentStarted):
                self._p.sender.wake()

    # ---- the optimizer's hooks -------------------------------------------------------------

    def _before_optimizer(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        deferred = after_closure(args, kwargs, self._before_update)
        if deferred is None:
            self._before_update()
        return deferred

    def _before_update(self) -> None:
        step = self._p.progress.steps + 1
        with self._p.faults.shield("before_step"):
            self._p.collector.before_step(step, self._p.rates.before_step(step))

    def _after_optimizer(self, *_: Any) -> None:
        with self._p.faults.shield("after_step"):
            self._p.collector.after_step()
        with self._p.faults.shield("after_step"):
            self._p.rates.after_step()

    # ---- a step's sample -------------------------------------------------------------------

    def _row(self, position: int) -> Row | None:
        progress, known = self._p.progress, self._times()
        batches = BatchRange(position, position + 1)
        with self._p.faults.shield("collect"):
            return self._p.collector.finish_step(progress.steps, progress.segment, batches, known)
        with suppress(Exception):
            self._p.collector.reset()
        return None

    def _times(self) -> dict[str, float]:
        now, last = time.perf_counter(), self._last_step_at
        self._last_step_at = now
        if last is None or now <= last:
            return {}
        times: dict[str, float] = {Signal.STEP_TIME: now - last}
        if self._p.tokens_per_step is not None:
            times[Signal.TOKENS_PER_SECOND] = self._p.tokens_per_step / (now - last)
        return times

    def _deliver(self, row: Row | None) -> None:
        """Pass on what has arrived, then act on what all ranks know."""
        if row is not None:
            self._rows.append(row)
        if self._p.agreement is None:
            with self._p.faults.shield("deliver"):
                self._deliver_alone()
            with self._p.faults.shield("orders"):
                self._executor.act_alone()
        elif not self._p.agreement.broken:
            with self._p.faults.shield("agreement"), in_step(self._p.world):
                self._deliver_together(self._p.agreement)

    def _deliver_alone(self) -> None:
        while self._rows and (self._rows[0].pending.arrived() or len(self._rows) >= DEPTH):
            row = self._rows.popleft()
            self._sample(row, row.read())
        self._p.collector.attentive = self._p.mailbox.attentive
        self._protect(self._p.mailbox.protected)

    def _deliver_together(self, agreement: Agreement) -> None:
        mailbox = self._p.mailbox
        word = Word(self._executor.announce(), mailbox.attentive, self._pins())
        agreed = agreement.exchange(word, self._due_row())
        if agreed is None:
            return
        self._sample_agreed(agreed)
        self._p.collector.attentive = agreed.word.attentive
        self._p.recovery.protected = mailbox.protected
        self._protect_pins(agreed.word.pins)
        self._executor.act_together(agreed.word.serial)

    def _due_row(self) -> Row | None:
        """The row whose step is the same on all ranks: this one, or on CUDA that of `lag` ago."""
        if not self._rows:
            return None
        on_device = self._rows[0].pending.event is not None
        lag = self._p.settings.agreement_lag if on_device else 0
        return self._rows.popleft() if len(self._rows) > lag else None

    def _drain(self) -> None:
        """Pass on every row there is, waiting for it; all ranks at the same boundary."""
        if self._p.agreement is not None and not self._p.agreement.broken:
            for _ in range(self._p.settings.agreement_lag):  # the same number on every rank
                row = self._rows.popleft() if self._rows else None
                agreed = self._p.agreement.exchange(Word(self._executor.announced), row)
                self._sample_agreed(agreed)
            for settled in self._p.agreement.drain():
                self._sample_agreed(settled)
            return
        while self._rows:
            row = self._rows.popleft()
            self._sample(row, row.read())

    def _sample_agreed(self, agreed: Agreed | None) -> None:
        if agreed is not None and agreed.row is not None:
            self._sample(agreed.row, agreed.values)

    def _sample(self, row: Row, values: dict[str, float]) -> None:
        if self.forward is not None:
            self.forward.put(row.step, values)
        columns = {name: (value,) for name, value in values.items()}
        self._report(Samples(row.segment, (row.step,), columns, (row.batches,)))
        if row.layers is not None and self._p.outbox is not None:
            norms = dict(list(row.layers.read().items())[:MAX_LAYERS])
            self._report(LayerNorms(row.segment, row.step, Signal.GRAD_NORM, norms))

    def _protect(self, names: frozenset[str]) -> None:
        self._p.recovery.protected = names
        if self._p.recovery.snapshots is not None:
            self._p.recovery.snapshots.protected = names

    def _pins(self) -> tuple[tuple[int, int], ...]:
        snapshots = self._p.recovery.snapshots
        held = snapshots.targets if snapshots is not None else []
        wanted = [t for t in held if t.name in self._p.mailbox.protected]
        return tuple((t.step, t.segment.number) for t in wanted)

    def _protect_pins(self, pins: tuple[tuple[int, int], ...]) -> None:
        snapshots = self._p.recovery.snapshots
        if snapshots is not None:
            held = [t for t in snapshots.targets if (t.step, t.segment.number) in pins]
            snapshots.protected = frozenset(t.name for t in held)

    # ---- saving ----------------------------------------------------------------------------

    def _save(self) -> None:
        steps, recovery = self.steps, self._p.recovery
        every = self._p.settings.snapshot_every
        if recovery.snapshots is not None and every and steps % every == 0:
            with self._p.faults.shield("snapshot"):
                recovery.snapshot()
        every = recovery.checkpoints.every if recovery.checkpoints is not None else 0
        if every and steps % every == 0:
            with self._p.faults.shield("checkpoint"):
                recovery.checkpoint()

    # ---- beginning -------------------------------------------------------------------------

    def _begin(self) -> None:
        """Tell the server of this attempt, once, when its loop is known."""
        if self._begun:
            return
        self._begun = True
        progress = self._p.progress
        resumed = progress.parent is not None
        self._report(
            AttemptStarted(
                progress.parent,
                self._p.world.size,
                tuple(self._executor.capabilities()),
                self._p.version,
                self._p.tokens_per_step,
                self._p.facts,
            )
        )
        reason = SegmentReason.RESUME if resumed else SegmentReason.START
        self._report(
            SegmentStarted(progress.segment, reason, progress.parent, self._p.feed.position)
        )
        for result in self._p.journal.unfinished() if self._p.world.leads else []:
            self._p.journal.end(result)
            self._report(result)

    def _shared_candidates(self) -> Iterator[Target]:
        """Rank 0's list on every rank; a rank that cannot see one says so in the vote."""
        mine = [target.name for target in self._p.recovery.candidates()]
        for name in share_text(self._p.world, "\n".join(mine)).split():
            found = self._p.recovery.find(name)
            if all_agree(self._p.world, found is not None) and found is not None:
                yield found

    def _resumed_from(self, target: Target) -> str | None:
        """Restore `target` on all ranks; why not, if one cannot."""
        recovery, tree, problem = self._p.recovery, None, None
        try:
            tree = recovery.load(target)
            problem = recovery.refusal(tree)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if not all_agree(self._p.world, problem is None) or tree is None:
            return problem or "another rank cannot read it"
        try:
            recovery.restore(target, tree, self._p.progress.segment)
            recovery.take_up_scale(target)
        except Exception as error:
            problem = f"restoring it failed half-way: {error!r}"
        if not all_agree(self._p.world, problem is None):
            raise AttemptAborted(problem or f"another rank failed to restore {target.name}")
        return None
