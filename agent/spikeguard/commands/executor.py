"""Carries out orders between steps: checks, agrees, acts, answers.

At most once, by the journal; never past its attempt, its time or its step; on every rank at the
same boundary or on none. Prepare (drain, load, verify) changes nothing; then every rank votes; then
rank 0 makes the intent durable and all vote on that; only then does anything change. A vote that
fails before rank 0 wrote ends the voting; from there on a failure leaves ranks in different states,
so it ends the attempt everywhere (`AttemptAborted`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from spikeguard.commands.journal import Begun
from spikeguard.commands.orders import Delivery, Refusal, count_refusal, refusal, verb_refusal
from spikeguard.commands.recovery import Report
from spikeguard.commands.rollback import Acting, Prepared, Rollbacks, changes_by
from spikeguard.errors import AttemptAborted
from spikeguard.faults import log
from spikeguard.optim.lr_scale import LrScale
from spikeguard.ranks.rank_group import all_agree, broadcast, first_problem, in_step
from spikeguard.state.lineage import steps_given_up
from spikeguard_protocol import (
    OWN_RULE,
    Action,
    Answer,
    Apply,
    CheckpointNow,
    CommandId,
    CommandResult,
    Order,
    ResultState,
    Rollback,
    ScaleLr,
    SkipBatches,
    Stop,
    Verb,
    Watch,
    action_words,
    verb_of,
)

HOUR_S = 3_600.0
_BY_TABLE = (Verb.SCALE_LR, Verb.SKIP_BATCHES, Verb.ROLLBACK)  # a row of this name says whether
REPEAT_S = 30.0  # an order still delivered after its result was put: put it again


class Executor:
    """Acts on the inbox at step boundaries."""

    def __init__(
        self,
        parts: Acting,
        unseen: Callable[[], str],
        report: Report,
        drain: Callable[[], None],
    ) -> None:
        """`unseen`: why no rate can be scaled now, whatever the table says; empty if one can."""
        self._parts, self._unseen, self._report, self._drain = parts, unseen, report, drain
        self._settings, self._mitigations = parts.settings, parts.mitigations
        self._world, self._progress, self._feed = parts.world, parts.progress, parts.feed
        self._rates, self._recovery, self._journal = parts.rates, parts.recovery, parts.journal
        self._inbox, self._faults = parts.inbox, parts.faults
        self._answered: deque[float] = deque(maxlen=parts.settings.orders_an_hour)  # when
        self._answered_at: dict[str, float] = {}
        self.announced = 0  # rank 0: orders made known to the other ranks
        self._seen = 0
        self._rollbacks = Rollbacks(parts, report, self._answer)

    def capabilities(self) -> tuple[Verb, ...]:
        """What can be carried out in this loop; nothing once its ranks agree no more."""
        if self._world.ties.broken:
            return ()
        disk, cannot = self._recovery.checkpoints, set(self._denied())
        if not self._feed.in_use:
            cannot.add(Verb.STOP)
        if not self._mitigations.registered:
            cannot.add(Verb.APPLY)
        if disk is None or not disk.on_demand:
            cannot.add(Verb.CHECKPOINT_NOW)
        settings = self._settings
        return tuple(v for v in Verb if not (v in cannot or verb_refusal(settings, v)))

    def _denied(self) -> dict[Verb, str]:
        """Orders that the table of abilities does not say yes to, and why."""
        unseen = self._unseen()
        denied: dict[Verb, str] = {Verb.SCALE_LR: unseen} if unseen else {}
        for row in self._parts.abilities:
            if row.name in _BY_TABLE and row.answer is not Answer.YES:
                denied[Verb(row.name)] = row.reason
        return denied

    @property
    def returning(self) -> bool:
        """Whether a rollback waits for steps of what the loop holds: nothing else is done then."""
        return self._rollbacks.waits

    def act_alone(self) -> None:
        """In a job of one process: carry out what has come."""
        self._refuse_unreadable()
        while not self.returning and (delivery := self._waiting()) is not None:
            self._carry_out(delivery)

    def announce(self) -> int:
        """Rank 0: the number of orders so far, one more if one waits that nobody knows of."""
        if self._inbox.unreadable:
            self._refuse_unreadable()
        if self._world.leads and self.announced == self._seen and self._waiting() is not None:
            self.announced += 1
        return self.announced

    def act_together(self, serial: int) -> None:
        """All ranks, having read the same `serial` at the same boundary."""
        if serial <= self._seen:
            return
        self._seen = serial
        self._carry_out(self._waiting() if self._world.leads else None)

    def _carry_out(self, delivery: Delivery | None) -> None:
        """On all ranks, rank 0's; None where it has none."""
        if delivery is not None and (reason := self._void(delivery)) is not None:
            self._answer(delivery.order, ResultState.REFUSED, reason)
            delivery = None
        order = broadcast(self._world, delivery.order if delivery is not None else None)
        if order is not None:
            self._execute(order)

    def refuse_all(self, reason: str) -> None:
        """Answer whatever has come, and tell once more what the server missed."""
        self._refuse_unreadable()
        while (delivery := self._waiting()) is not None:
            self._answer(delivery.order, ResultState.REFUSED, reason)

    def _refuse_unreadable(self) -> None:
        """Orders that break the protocol get an answer too, where they have a name."""
        now = time.monotonic()
        for order in self._inbox.unreadable:
            if not order.command:
                self._faults.note("orders", f"an order without a name: {order.problem}")
            elif (stored := self._journal.results.get(order.command)) is not None:
                self._repeat(stored, now)
            elif self._may_answer(now):
                said = f"this agent cannot read the order: {order.problem}"
                steps = self._progress.steps
                result = CommandResult(order.command, ResultState.REFUSED, said[:2000], steps)
                self._conclude(result, None)

    def _waiting(self) -> Delivery | None:
        """The oldest delivered order that has no result; repeats results the server missed."""
        now = time.monotonic()
        for delivery in self._inbox.orders:
            stored = self._journal.results.get(delivery.order.command)
            if stored is None:
                return delivery if self._may_answer(now) else None
            if not self._journal.answers(delivery.order):
                said = "another command of this number was carried out before: the server lost it"
                steps = self._progress.steps
                stored = CommandResult(stored.command, ResultState.REFUSED, said, steps)
            self._repeat(stored, now)
        return None

    def _repeat(self, told: CommandResult, now: float) -> None:
        """Tell a result again that the server seems to have missed."""
        if now - self._answered_at.get(told.command, -REPEAT_S) >= REPEAT_S:
            self._answered_at[told.command] = now
            self._report(told)

    def _may_answer(self, now: float) -> bool:
        """Whether one more order may be answered: each answer waits for the disk in the loop."""
        most = self._settings.orders_an_hour
        if len(self._answered) < most or now - self._answered[0] >= HOUR_S:
            return True
        self._faults.note(
            "order_flood",
            f"{most} orders were answered within an hour (Settings.orders_an_hour): more are left "
            "without an answer until it is over",
        )
        return False

    def _void(self, delivery: Delivery) -> str | None:
        """Why an order may not be carried out any more; None if it may."""
        order, steps = delivery.order, self._progress.steps
        if order.attempt != self._progress.attempt:
            return f"it was meant for attempt {order.attempt}"
        if delivery.expired(time.monotonic()):
            return f"it expired: the {order.expires_in_s:.3g} s that it was good for are over"
        if order.expires_at_step is not None and steps >= order.expires_at_step:
            return f"it expired at step {order.expires_at_step}; the run is at {steps}"
        verb = verb_of(order.action)
        if (reason := verb_refusal(self._settings, verb)) is not None:
            return reason
        if verb not in self.capabilities():
            why = self._denied().get(verb)
            return f"this loop cannot {verb}" + (f": {why}" if why else "")
        return self._beyond_limits(order.action, verb)

    def _beyond_limits(self, action: Action, verb: Verb) -> str | None:
        """Why the job's own settings forbid it; None where they allow it."""
        target = self._recovery.find(action.target) if isinstance(action, Rollback) else None
        back = steps_given_up(self._progress.lineage, target.lineage) if target else 0
        reason = refusal(self._settings, action, back)
        done = self._journal.carried_out
        return reason or count_refusal(self._settings, verb, done, time.monotonic())

    def _execute(self, order: Order) -> None:
        """Prepare, vote, make durable, vote, commit."""
        prepared, reason = self._prepared(order.action)
        reason = self._vote(reason)
        if reason is not None:
            self._refuse(order, reason)
            return
        begun = changes_by(order, prepared, self._progress, self._journal)
        if (reason := self._durable_everywhere(order, begun)) is not None:
            self._refuse(order, reason)
            return
        if not self._world.leads:
            self._journal.begin(begun, order)  # keeps in memory what rank 0 has written
        scale = begun.scaling.scale if begun.scaling is not None else None
        if prepared is not None:
            try:
                self._rollbacks.begin(order, prepared, scale)
            except Exception as error:  # the journal has given up what would be trained from here
                problem = f"{order.command} was written down and not carried out: {error!r}"
                raise AttemptAborted(problem) from error
        else:
            state, said = self._done(order.action, scale)
            self._answer(order, state, said)

    def _refuse(self, order: Order, reason: str) -> None:
        self._feed.cancel()
        self._answer(order, ResultState.REFUSED, reason)

    def _vote(self, reason: str | None) -> str | None:
        """Why it is not done, None if every rank would; nothing has changed yet."""
        try:
            return first_problem(self._world, reason)
        except Exception as error:
            self._faults.note("agreement", error)
            return reason or f"the ranks could not agree: {error}"[:500]

    def _durable_everywhere(self, order: Order, begun: Begun) -> str | None:
        """Why it is not done; raise where nobody can know what the others do."""
        reason = None
        try:
            if self._world.leads:
                try:
                    self._journal.begin(begun, order)
                except Exception as error:
                    reason = f"the journal cannot be written: {error}"[:500]
            agreed = all_agree(self._world, reason is None)
        except Exception as error:
            problem = f"the ranks could not agree on {order.command} once it was written: {error!r}"
            raise AttemptAborted(problem) from error
        return None if agreed else reason or "rank 0 could not write its journal"

    def _prepared(self, action: Action) -> tuple[Prepared | None, str | None]:
        """The target of a rollback, and why the order is not carried out."""
        try:
            if isinstance(action, Rollback):
                self._drained()  # first: all take part, whether they can load or not
            if isinstance(action, Apply | Rollback):
                self._mitigations.check(action)
            if isinstance(action, Rollback):
                return self._rollbacks.load(action), None
            unread = self._feed.unread
            if isinstance(action, SkipBatches) and action.batches.first < unread:
                first = action.batches.first
                raise Refusal(f"position {first} was read already; the next one is {unread}")
            return None, None
        except Refusal as refusal:
            return None, str(refusal)
        except Exception as error:
            self._faults.note("prepare", error)
            return None, f"it could not be prepared: {type(error).__name__}: {error}"[:500]

    def _done(self, action: Action, scale: LrScale | None) -> tuple[ResultState, str]:
        try:
            return ResultState.APPLIED, self._act(action, scale)
        except Refusal as failed:
            return ResultState.FAILED, str(failed)
        except Exception as error:
            self._faults.note("command", error)
            return ResultState.FAILED, f"{type(error).__name__}: {error}"[:500]

    def _act(self, action: Action, scale: LrScale | None) -> str:
        """What was done; raises `Refusal` where it was not."""
        match action:
            case SkipBatches(batches=batches):
                return f"will leave out {batches}"
            case ScaleLr(factor=factor, steps=count):
                self._rates.scale = scale
                return f"x{factor:g} for {count} steps"
            case Apply(name=mitigation, steps=count):
                if problem := self._mitigations.take_up():
                    raise Refusal(problem)
                return f"{mitigation} for {count} steps"
            case CheckpointNow():
                if (name := self._recovery.checkpoint()) is None:
                    raise Refusal("a rank could not write its part")
                return name
            case Watch(steps=count):
                return f"watching for {count} steps"
            case Stop():
                self._feed.stopped = True
                return "the loop ends at this step"
        raise Refusal("unknown action")

    def finish_step(self) -> None:
        """A step was made: a rollback that waited for it is carried out, on all ranks."""
        self._rollbacks.finish_step(self._drained)

    def _drained(self) -> None:
        with in_step(self._world):
            self._drain()

    def correct_rollback(self) -> None:
        """A batch that came after the newest rollback was not the one that lay there before."""
        order, self._rollbacks.newest = self._rollbacks.newest, None
        if order is not None:
            told = self._journal.results[order.command]
            self._conclude(replace(told, reason=f"other data, {told.reason}"[:2000]), order)

    def _answer(
        self, order: Order, state: ResultState, reason: str, step: int | None = None
    ) -> None:
        at = self._progress.steps if step is None else step
        self._conclude(CommandResult(order.command, state, reason[:2000], at), order)

    def _conclude(self, result: CommandResult, order: Order | None) -> None:
        with self._faults.shield("journal"):
            self._journal.end(result, order)
        self._journal.results[result.command] = result
        self._inbox.own = tuple(d for d in self._inbox.own if d.order.command != result.command)
        self._answered_at[result.command] = time.monotonic()
        self._answered.append(time.monotonic())
        self._log(order, result)
        self._report(result)

    def _log(self, order: Order | None, result: CommandResult) -> None:
        """On the job's own side: what was ordered and what became of it."""
        if not self._world.leads:
            return
        done = result.state is ResultState.APPLIED
        own = CommandId.parse(result.command).number >= OWN_RULE
        log.log(
            logging.INFO if done else logging.WARNING,
            "%s ordered %s, %s: %s at step %d: %s",
            "the emergency rule" if own else "the server",
            result.command,
            action_words(order.action) if order is not None else "which cannot be read",
            result.state,
            result.step,
            result.reason,
        )
