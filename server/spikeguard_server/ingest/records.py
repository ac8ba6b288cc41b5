"""Applies each record of a message to the database.

Records count in their order. Samples of a segment that is not the run's current one are history:
stored, never detected on. The first `MOST_OWN` names of a run's own signals stay for good, because
tables grow with names times steps; the audit says once that others are left out.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.diagnosis.change_effect import (
    changes_between,
    changes_words,
    cut,
    trained_with,
)
from spikeguard_core.lifecycle.command_life import CommandEvent
from spikeguard_core.lifecycle.incident_life import acted
from spikeguard_core.lifecycle.job_end import ON_PURPOSE
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import (
    STANDARD_SIGNALS,
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    CommandResult,
    Gap,
    LayerNorms,
    Message,
    Samples,
    SegmentReason,
    SegmentStarted,
    Signal,
    TargetDeleted,
    TargetSaved,
    Verb,
)
from spikeguard_protocol.identity import MAX_STEP, MAX_TAGS, TAG_PATTERN, TAGS_FACT
from spikeguard_server.ingest.detection import past_monitor
from spikeguard_server.ingest.message_context import NO_STEP, Intake
from spikeguard_server.ingest.results import give_up, take_result
from spikeguard_server.ingest.spikes import end_aftermath, write_events
from spikeguard_server.store import audit
from spikeguard_server.store.chunks import SegmentKey, appended
from spikeguard_server.store.detectors import SNAPSHOT_STEPS
from spikeguard_server.store.engine import write
from spikeguard_server.store.notes import add_note
from spikeguard_server.store.runs import (
    ENDED,
    Place,
    attempts_named,
    introduce_attempt,
    open_segment,
    read_tags,
    segments_of,
    write_tags,
)
from spikeguard_server.store.samples import write_batches, write_layer_norms
from spikeguard_server.store.situations import delete_target, forget_memory, save_target


def take_records(intake: Intake, message: Message) -> None:
    """Let every record of `message` have its effect."""
    connection, run_id, number = intake.connection, intake.run_id, intake.attempt.number
    targets = {r.step for r in message.records if isinstance(r, TargetSaved)}
    details = list[BatchDetail]()
    for record in message.records:
        match record:
            case Samples():
                _take_samples(intake, record, targets)
            case BatchDetail():
                details.append(record)
            case AttemptStarted():
                introduce_attempt(connection, run_id, intake.attempt, record)
                note_attempt(intake, record)
                tag_as_told(intake, record)
            case SegmentStarted():
                _start_segment(intake, record)
            case LayerNorms():
                write_layer_norms(connection, run_id, number, record)
            case TargetSaved():
                save_target(connection, run_id, number, record, intake.now)
                here = Place(number, record.segment, record.step)
                if intake.current and intake.detection.place == here:
                    intake.detection.keep(connection, at_target=True)
            case TargetDeleted():
                delete_target(connection, run_id, number, record.name, intake.now)
            case CommandResult():
                take_result(intake, record)
            case Gap():
                lost = intake.attempt.dropped_samples + record.samples_lost
                intake.attempt.dropped_samples = min(lost, MAX_STEP)
            case AttemptEnded():
                _end(intake, record)
    if details:
        write_batches(connection, run_id, number, details)


def _start_segment(intake: Intake, started: SegmentStarted) -> None:
    run, number = intake.run, intake.attempt.number
    if not open_segment(intake.connection, run.run_id, number, started):
        return
    intake.newest[started.segment] = NO_STEP
    if not intake.current:
        return
    if run.current_segment is not None and started.segment < run.current_segment:
        return
    run.current_segment, run.position = started.segment, started.position
    _rewind(intake, started)
    parent = started.parent
    intake.detection.enter(Place(number, started.segment, parent.step if parent else 0))
    intake.detection.keep(intake.connection)


def return_to_newest_segment(intake: Intake) -> None:
    """Go on from what is stored of this attempt, which was not followed for a while."""
    run, number = intake.run, intake.attempt.number
    tree = segments_of(intake.connection, run.run_id)
    newest = next((each for each in reversed(tree) if each.attempt == number), None)
    if newest is None:
        run.current_segment = None
        return
    begun_at = newest.parent.step if newest.parent else 0
    step = begun_at if newest.last_step is None else newest.last_step
    run.current_segment, run.position = newest.id.number, newest.position
    here = Place(number, newest.id.number, step)
    past = None
    if intake.failure is None:
        past = past_monitor(intake.connection, intake.run_id, here)
    if past is not None:
        intake.detection.moved().rewind(past)
    intake.detection.enter(here)
    intake.detection.keep(intake.connection)


def _rewind(intake: Intake, started: SegmentStarted) -> None:
    """Take the monitor back to what it knew where the segment begins."""
    past: Monitor | None = None
    if intake.failure is not None or intake.detection.row.version == 0:
        return
    if (parent := started.parent) is not None:
        number = intake.attempts.numbers.get(parent.segment.attempt)
        if number is not None:
            here = Place(number, parent.segment.number, parent.step)
            past = past_monitor(intake.connection, intake.run_id, here)
    elif started.reason is SegmentReason.START:
        write_events(intake, intake.detection.moved().end())  # what is trained now is another model
        end_aftermath(intake)
        past = Monitor()
    if past is None or not intake.detection.moved().rewind(past) or intake.incident is None:
        return
    if started.reason is not SegmentReason.ROLLBACK:  # whose command is applied next
        intake.save(acted(intake.incident, Verb.ROLLBACK))


def _take_samples(intake: Intake, samples: Samples, targets: Collection[int]) -> None:
    if not samples.signals.keys() <= STANDARD:
        samples = within_own_names(intake, samples)
    run, fresh = intake.run, _store_samples(intake, samples)
    if fresh is None or not intake.current or samples.segment != run.current_segment:
        return
    samples = fresh
    _show_newest(intake, samples)
    if intake.failure is not None:
        return
    events = intake.detection.observe(
        intake.connection, SampleColumns(samples.steps, samples.signals, samples.positions),
        every=SNAPSHOT_STEPS, targets=targets,
    )  # fmt: skip
    monitor = intake.detection.monitor
    run.last_z = monitor.deviations(samples.steps[-1], run.last_loss)
    own = monitor.own_deviations()
    run.own_z = json.dumps(own) if own else None
    if events:
        intake.unfinished = None  # proposals may follow
        write_events(intake, events)


def _store_samples(intake: Intake, samples: Samples) -> Samples | None:
    """The samples that lie behind all of their segment, which are stored; None where none does. Of
    any other the run has the step already, or it was told out of order: it counts as dropped."""
    run_id, number, segment = intake.run_id, intake.attempt.number, samples.segment
    newest = intake.newest.get(segment)
    if newest is None:
        there = segments_of(intake.connection, run_id, places=[(number, segment)])
        newest = there[0].last_step if there else None
        if not there:  # the record that opened it was lost: what it said is not known
            known = next((each.first for each in samples.positions if each is not None), None)
            at = (intake.run.position or 0) if known is None else known
            _start_segment(intake, SegmentStarted(segment, SegmentReason.RESUME, None, at))
    if newest is None:
        newest = NO_STEP
    behind = bisect_right(samples.steps, newest)
    intake.attempt.dropped_samples = min(intake.attempt.dropped_samples + behind, MAX_STEP)
    if behind == len(samples.steps):
        return None
    fresh = samples
    if behind:
        signals = {name: column[behind:] for name, column in samples.signals.items()}
        positions = tuple(samples.positions[behind:])
        fresh = Samples(segment, samples.steps[behind:], signals, positions)
    write(intake.connection, appended(SegmentKey(run_id, number, segment), fresh))
    first, _ = intake.stored.get(segment, (fresh.steps[0], None))
    intake.stored[segment] = first, fresh.steps[-1]
    intake.newest[segment] = fresh.steps[-1]
    return fresh


def _show_newest(intake: Intake, samples: Samples) -> None:
    """The run's newest values, for lists of runs."""
    run = intake.run
    run.last_step = samples.steps[-1]
    if (position := samples.positions[-1]) is not None:
        run.position = position.end
    run.last_loss = _newest(samples, Signal.LOSS, run.last_loss)
    run.last_grad_norm = _newest(samples, Signal.GRAD_NORM, run.last_grad_norm)
    run.tokens_per_second = _newest(samples, Signal.TOKENS_PER_SECOND, run.tokens_per_second)


def _newest(samples: Samples, signal: Signal, before: float | None) -> float | None:
    for value in reversed(samples.signals.get(signal, ())):
        if value is not None:
            return value
    return before


def _end(intake: Intake, ended: AttemptEnded) -> None:
    attempt = intake.attempt
    if attempt.ended_at is None:  # the first time counts
        intake.record("attempt.ended", ended.reason, before=attempt.name)
    attempt.ended_at, attempt.end_reason = intake.now, ended.reason
    forget_memory(intake.connection, intake.run_id, attempt.number, intake.now)
    over = intake.current and ended.reason in ON_PURPOSE
    give_up(
        intake, f"the attempt ended: {attempt.end_reason}", attempt=attempt.number,
        event=CommandEvent.END_RUN if over else CommandEvent.RESTART,
    )  # fmt: skip
    if not intake.current:
        return
    intake.set_state(ENDED, f"{attempt.name} ended: {attempt.end_reason}")
    if over:
        if intake.failure is None:
            write_events(intake, intake.detection.moved().end())
        end_aftermath(intake)


MOST_OWN: Final = 128  # names of a run; a record has 64 at most
STANDARD: Final = frozenset(STANDARD_SIGNALS)


def within_own_names(intake: Intake, samples: Samples) -> Samples:
    """The samples, which have signals of the job's own, without what the run has no room for any
    more."""
    known: list[str] = json.loads(intake.run.own_names or "[]")
    kept = frozenset(known[:MOST_OWN])
    fresh = [name for name in samples.signals if name not in STANDARD and name not in kept]
    if not fresh:
        return samples
    room = max(0, MOST_OWN - len(known))
    left_out = fresh[room:]
    # One beyond the most says that the run was told.
    told = len(known) > MOST_OWN
    intake.run.own_names = json.dumps([*known, *fresh][: MOST_OWN + 1])
    if not left_out:
        return samples
    if not told:
        intake.record(
            "signals.left_out",
            f"a run has {MOST_OWN} signals of its own at most: {left_out[0]} is not stored, "
            "nor any other new name; log under names that stay the same",
        )
    signals = {n: column for n, column in samples.signals.items() if n not in left_out}
    return replace(samples, signals=signals)


def note_attempt(intake: Intake, started: AttemptStarted) -> None:
    """Note what the attempt trains with otherwise than the one that it goes on from.

    Its learning rate is compared once it has trained: until then, and where nothing else changed,
    the note is not shown.
    """
    parent = started.parent
    if parent is None or parent.segment.attempt == intake.attempt.id:
        return
    number = intake.attempts.numbers.get(parent.segment.attempt)
    if number is None:  # it never reached us
        return
    (told,) = attempts_named(intake.connection, intake.run_id, [number])
    before, now = (
        trained_with(
            said.settings, world_size=said.world_size, tokens_per_step=said.tokens_per_step
        )
        for said in (told, started)
    )
    changes = [cut(change) for change in changes_between(before, now)]
    add_note(
        intake.connection, intake.run_id, intake.now,
        Place(number, parent.segment.number, parent.step), changes, source="attempt",
        actor=audit.SERVER, step=parent.step, text=changes_words(changes),
        began=intake.attempt.number, shown=bool(changes), due_step=parent.step + 1,
    )  # fmt: skip


MOST_TOLD: Final = 1000  # characters


def tag_as_told(intake: Intake, started: AttemptStarted) -> None:
    """Add the tags that a job gives its run, as far as there is room; what is none is left out."""
    told = started.settings.get(TAGS_FACT, "")[:MOST_TOLD].split(",")
    wanted = [tag for tag in dict.fromkeys(told) if TAG_PATTERN.fullmatch(tag)]
    if not wanted:
        return
    before = read_tags(intake.connection, intake.run_id)
    fresh = [tag for tag in wanted if tag not in before][: max(0, MAX_TAGS - len(before))]
    if fresh:
        write_tags(intake.connection, intake.run_id, fresh)
        told_by, after = f"told by {intake.attempt.name}", _listed([*before, *fresh])
        intake.record("tagged", told_by, before=_listed(before), after=after)


def _listed(tags: Collection[str]) -> str | None:
    return ", ".join(sorted(tags)) or None
