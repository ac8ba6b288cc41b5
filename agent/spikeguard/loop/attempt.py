"""How an attempt begins, where it goes on from and how it introduces itself; and how it ends when
nobody calls `finish()`: by SIGTERM, or at the interpreter's exit.

A handler of SIGTERM that somebody else installed is left alone; after ours has flushed every guard
of the process, all at once, the signal does what it would have done.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

from spikeguard.commands.journal import REPEATED
from spikeguard.errors import AttemptAborted, RestoreFailedAgain, ResumeError
from spikeguard.faults import log
from spikeguard.loop.capabilities import (
    data_abilities,
    log_changes,
    merged,
    rewind_ability,
    usage_abilities,
    within_limits,
)
from spikeguard.loop.context import Parts
from spikeguard.ranks.rank_group import all_agree, all_gather, broadcast, first_problem
from spikeguard.settings import Settings
from spikeguard.state.lineage import Target
from spikeguard_protocol import (
    Answer,
    AttemptStarted,
    Record,
    SegmentReason,
    SegmentStarted,
    Verb,
    abilities_to_settings,
)
from spikeguard_protocol.abilities import mitigations_to_settings
from spikeguard_protocol.findings import findings_to_settings

FAILED = "restore_failed.txt"  # beside the journal: how the newest start failed to restore a state


def introduce(
    parts: Parts, capabilities: Callable[[], tuple[Verb, ...]], report: Callable[[Record], None]
) -> None:
    """Tell the server of this attempt, and of commands an earlier one left without an answer.

    What the journal answered already is told again: an attempt killed between journal and outbox
    left its answer there alone. The server keeps the first that it hears.
    """
    progress = parts.progress
    restored = progress.parent is not None
    parts.doctor.begin(fresh=not (restored or progress.steps), restored=restored)
    learn_from_loop(parts)
    if parts.world.leads:
        _log_journal(parts)
    report(introduction(parts, capabilities()))
    reason = SegmentReason.RESUME if restored else SegmentReason.START
    report(SegmentStarted(progress.segment, reason, progress.parent, parts.feed.position))
    for told in parts.journal.earlier:
        report(told)
    for result in parts.journal.unfinished() if parts.world.leads else []:
        parts.journal.end(result)
        report(result)


def _log_journal(parts: Parts) -> None:
    """What earlier attempts were ordered that holds on, and what of it is not repeated."""
    journal, scale = parts.journal, parts.rates.scale
    for undo in list(journal.undone.values())[-REPEATED:]:
        log.info("what %s ordered earlier is not repeated: %r undid it", undo.command, undo.by)
    ahead = [skip for skip in journal.skips.ranges if skip.end > parts.feed.position]
    for skip in ahead[-REPEATED:]:
        command = journal.skips.commands.get(skip, "an earlier order")
        log.info("the journal repeats %s: batches %s are left out", command, skip)
    if scale is not None and scale.start + scale.steps > parts.progress.steps:
        until = scale.start + scale.steps
        log.info("the learning rate stays x%g until step %d, as ordered", scale.factor, until)
    if journal.abandonments:
        log.info("steps given up by rollbacks stay so: %d times", len(journal.abandonments))


def introduction(parts: Parts, capabilities: tuple[Verb, ...]) -> AttemptStarted:
    """What an attempt says of itself; the newest that it said holds."""
    settings = {
        **parts.facts,
        **abilities_to_settings(parts.abilities),
        **mitigations_to_settings(parts.mitigations.costs),
    }
    return AttemptStarted(
        parts.progress.parent,
        parts.world.size,
        tuple(capabilities),
        parts.version,
        parts.tokens_per_step,
        {**settings, **findings_to_settings(parts.doctor.findings, len(settings))},
        parts.links,
    )


def learn_from_loop(parts: Parts) -> bool:
    """Note what the loop has shown; whether that changes what can be done."""
    recovery, settings = parts.recovery, parts.settings
    if parts.rewind.answer is Answer.YES:
        every = parts.cadence.words()
        parts.rewind = rewind_ability(settings, recovery.snapshots, every=every)
    now = merged(
        parts.always,
        (
            *data_abilities(parts.feed, parts.rewind, recovery.checkpoints is not None, begun=True),
            *usage_abilities(parts.usage, parts.facts["optimizer"]),
        ),
    )
    before = parts.abilities
    news = tuple(each for each in within_limits(now, settings) if each not in before)
    parts.abilities = merged(before, news)
    if parts.world.leads:
        log_changes(news, before)
    return parts.doctor.tell() or bool(news)


def examine(parts: Parts, updates: int) -> bool:
    """Look at how the loop trains, once in 16 steps; whether there is something to tell.

    `updates`: how often the optimizer's hooks ran.
    """
    feed, usage = parts.feed, parts.usage
    news = usage.look(feed, updates) or feed.unusual
    feed.unusual = False
    found = parts.doctor.look(usage.rates_by_step, clips=parts.collector.clips, half=usage.half)
    return news or found


def resume(parts: Parts) -> int:
    """Restore the newest checkpoint that is not abandoned; returns its step, 0 if none.

    Raises `ResumeError` if there are checkpoints and none can be restored.
    """
    damaged = parts.recovery.checkpoints.unreadable() if parts.recovery.checkpoints else []
    problems = list(broadcast(parts.world, damaged))
    for target in _shared_candidates(parts):
        problem = _resumed_from(parts, target)
        if problem is None:
            for found in parts.recovery.candidates() if parts.world.leads else ():
                if found.damage is not None and found.step >= target.step:
                    how = "is damaged, as all others are"
                    how = how if found == target else "was passed over: damaged"
                    log.warning("checkpoint %s %s: %s", found.name, how, found.damage)
            log_resumed(parts, target)
            return parts.progress.steps
        log.warning("checkpoint %s was passed over: %s", target.name, problem)
        problems.append(f"{target.name}: {problem}")
    if problems:
        raise ResumeError(
            "no checkpoint could be restored; repair one or point CheckpointDirectory at an "
            f"empty folder to begin anew. {'; '.join(problems)}"
        )
    parts.recovery.take_up_scale(None)
    if parts.world.leads and parts.recovery.checkpoints is not None:
        log.info("no checkpoint in %s yet: begins at step 0", parts.recovery.checkpoints.path)
    return 0


def resume_at(parts: Parts, step: int) -> int:
    """The loop stands at `step` by a state of its own; returns it. Raises `ResumeError`."""
    if type(step) is not int or step < 0:
        raise ResumeError(f"resume(step={step!r:.80}): give the steps made so far, a whole number")
    said = all_gather(parts.world, str(step))
    if len(set(said)) > 1:
        raise ResumeError(f"resume(step=...) differs: rank by rank it is {', '.join(said[:16])}")
    known = next((t for t in _shared_candidates(parts) if t.step == step), None)
    progress = parts.progress
    if known is not None:  # the segment that it goes on from
        progress.continue_from(known.lineage, progress.segment)
    progress.steps = step
    parts.feed.position = known.position if known is not None else step
    parts.recovery.take_up_scale(known)
    if parts.world.leads:
        log.info(
            "goes on from step %d, which the loop has restored itself, and position %d of the data",
            step, parts.feed.position,
        )  # fmt: skip
    return step


def warn_of_unused(parts: Parts) -> None:
    """Rank 0: of checkpoints that lie there while the run begins at step 0."""
    recovery = parts.recovery
    own = recovery.checkpoints is not None and recovery.checkpoints.on_demand
    if not own or parts.progress.steps or parts.progress.parent or not parts.world.leads:
        return
    if (found := recovery.candidates()) and recovery.checkpoints is not None:
        log.warning(
            "%s holds checkpoints up to step %d, and this attempt begins at step 0. Call "
            "guard.resume() before the first step to go on from the newest, or "
            "guard.resume(step=N) where the loop has restored step N itself",
            recovery.checkpoints.path,
            found[0].step,
        )


def log_resumed(parts: Parts, target: Target) -> None:
    """Rank 0: from where this attempt goes on, and what the loop has to do for it."""
    if not parts.world.leads:
        return
    given_up = len(parts.journal.abandonments)
    log.info(
        "goes on from checkpoint %s, after step %d, with the batches of position %d%s. "
        "A counter of the loop's own has to begin at guard.steps, which is %d",
        target.name,
        parts.progress.steps,
        parts.feed.position,
        f"; {given_up} {'stretch' if given_up == 1 else 'stretches'} of steps given up by rollbacks"
        if given_up
        else "",
        parts.progress.steps,
    )


def _shared_candidates(parts: Parts) -> Iterator[Target]:
    """Rank 0's list on every rank; a rank that cannot see one says so in the vote."""
    mine = [target.name for target in parts.recovery.candidates()]
    for name in broadcast(parts.world, mine):
        found = parts.recovery.find(name)
        if all_agree(parts.world, found is not None) and found is not None:
            yield found


def _resumed_from(parts: Parts, target: Target) -> str | None:
    """Restore `target` on all ranks; why not, if one cannot."""
    recovery, tree, problem = parts.recovery, None, None
    try:
        tree = recovery.load(target)
        problem = recovery.state.refusal(tree)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    problem = first_problem(parts.world, problem)
    if problem is not None or tree is None:
        return problem
    try:
        parts.feed.go_back(tree["data"], tree["random"])
        recovery.restore(target, tree, parts.progress.segment)
        recovery.take_up_scale(target)
    except Exception as error:
        problem = f"restoring {target.name} failed half-way: {error!r}"
    if not all_agree(parts.world, problem is None):
        problem = problem or f"another rank failed to restore {target.name}"
        before = ""  # how the start before failed
        if parts.world.leads:
            with suppress(OSError):
                noted = parts.home / FAILED
                before = noted.read_text() if noted.is_file() else ""
                noted.write_text(problem)
        again = broadcast(parts.world, before == problem)
        raise RestoreFailedAgain(problem) if again else AttemptAborted(problem)
    if parts.world.leads:
        with suppress(OSError):
            (parts.home / FAILED).unlink(missing_ok=True)
    return None


# ---- the end -----------------------------------------------------------------------------------


SLACK_S = 1.0  # beyond `flush_s`; an ending that is not through by then is left behind


class Endings:
    """The hooks of one guard into the process's end."""

    def __init__(self, flush: Callable[[str], None], settings: Settings) -> None:
        self.flush, self.within_s = flush, settings.flush_s + SLACK_S
        handler = signal.getsignal(signal.SIGTERM)
        if _on_main_thread() and handler in (signal.SIG_DFL, on_sigterm):
            signal.signal(signal.SIGTERM, on_sigterm)
            _waiting.append(self)
        atexit.register(self._on_exit)

    def undo(self) -> None:
        """Take the hooks out."""
        atexit.unregister(self._on_exit)
        if self not in _waiting:
            return
        _waiting.remove(self)
        ours = not _waiting and signal.getsignal(signal.SIGTERM) == on_sigterm
        if ours and _on_main_thread():  # elsewhere it stays, and has nothing left to flush
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_exit(self) -> None:
        self.flush("exited without finish()")


_waiting: list[Endings] = []  # for SIGTERM, which a process has one handler of


def on_sigterm(number: int, _: FrameType | None) -> None:
    """Flush all guards, then let the signal do what it does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    began = time.monotonic()
    flushing = []
    for endings in _waiting:  # by threads, since what was interrupted may hold a lock
        thread = threading.Thread(target=endings.flush, args=("SIGTERM",), daemon=True)
        with suppress(RuntimeError):  # no thread can be had any more: then nothing is flushed
            thread.start()
        flushing.append((thread, endings.within_s))
    for thread, within_s in flushing:
        if thread.ident is not None:
            thread.join(max(0.0, began + within_s - time.monotonic()))
    os.kill(os.getpid(), number)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
