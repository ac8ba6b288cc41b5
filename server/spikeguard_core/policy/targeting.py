"""Chooses a rollback's target and the batches to skip, by the health of the targets.

Health: suspect if an incident was open when it was taken; pending until `horizon` steps have passed
with no onset or precursor; healthy then. It returns when the incident closes without damage or its
damage is rolled back: what lies off the run's present lineage does not count, so a rollback clears
what it undid. Damaged, and never chosen, if
the agent found values in it that no training heals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import (
    Incident,
    began_step,
    cause_step,
    few_batches,
    optimizer_suspect,
)
from spikeguard_core.policy.finding import diagnose
from spikeguard_core.policy.remedies import GoBack
from spikeguard_core.policy.situation import HEALTH_HORIZON_STEPS, Situation, Target
from spikeguard_core.suspicion import Mark
from spikeguard_protocol import (
    BatchRange,
    CommandState,
    Health,
    Kind,
    Medium,
    Outcome,
    Rollback,
    SegmentId,
    SegmentPoint,
)

# After the practice that `remedies` names. Shares bound both distances in a short run.
MARGIN_STEPS = 2  # between a target and the cause, at least
NEAR_STEPS = 50  # before the cause: a target is "just before" it
OPTIMIZER_BACK_STEPS, OPTIMIZER_BACK_SHARE = 1_000, 0.25
FEW_SKIP_LEAST, FEW_SKIP_MOST = 5, 20  # batches, where few did the damage
SLOW_ROWS = 10  # of a log, in which a jump is seen at the latest
SKIP_MOST, SKIP_SHARE = 500, 0.05  # batches, whatever did it
_STEP = attrgetter("step")
# Outcomes after which the weights are known to be good, or are accepted as they are.
FORGIVEN = frozenset(
    {Outcome.HEALED, Outcome.RECOVERED, Outcome.LEVEL_ACCEPTED, Outcome.OUTLIER, Outcome.WITHDRAWN}
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Steps of a segment about which the weights are in doubt."""

    segment: SegmentId
    step: int  # onset, or the precursor's step
    end_step: int | None  # when it was over; None = it still is open


def alarms_of(incident: Incident) -> tuple[Alarm, ...]:
    """The doubts that `incident` casts on targets; none once it is forgiven."""
    if incident.outcome in FORGIVEN:
        return ()
    first = Alarm(incident.segment, incident.onset_step, incident.closed_step)
    again = Alarm(incident.newest_segment, incident.newest_onset_step, incident.closed_step)
    return (first,) if again == first else (first, again)


class Doubts:
    """The alarms that lie on a lineage; those off it are ignored."""

    def __init__(self, alarms: Iterable[Alarm], lineage: Lineage) -> None:
        self.lineage = lineage
        present = (a for a in alarms if lineage.holds(SegmentPoint(a.segment, a.step)))
        ends = ((a.step, math.inf if a.end_step is None else a.end_step) for a in present)
        self.alarms = sorted(ends)  # onsets or precursors, and when they were over


def health_of(taken: SegmentPoint, *, newest_step: int, doubts: Doubts) -> Health:
    """The health of a target taken at `taken`, where `newest_step` is the run's newest step.

    A target off the lineage is suspect for ever.
    """
    step, alarms = taken.step, doubts.alarms
    if any(begun <= step <= over for begun, over in alarms) or not doubts.lineage.holds(taken):
        return Health.SUSPECT
    calm = next((begun - 1 for begun, _ in alarms if begun > step), newest_step) - step
    return Health.HEALTHY if calm >= HEALTH_HORIZON_STEPS else Health.PENDING


def with_damage(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Of one lineage, by step; the damaged ones marked so.

    Checkpoints are looked at when they are written. A snapshot in memory is not: it has the damage
    of the newest checkpoint before it, since what lies in weights and moments stays there.
    """
    marked, last = [], None
    for target in sorted(targets, key=lambda t: (t.step, t.medium is Medium.MEMORY)):
        if target.medium is Medium.DISK:
            last = target if target.damage is not None else None
        if last is not None:
            damage = (
                last.damage if target is last else f"taken after {last.name}, where {last.damage}"
            )
            target = replace(target, health=Health.DAMAGED, damage=damage)
        marked.append(target)
    return tuple(marked)


UNDONE = frozenset({CommandState.REFUSED, CommandState.FAILED})  # the target may be gone


def choose_target(situation: Situation) -> tuple[Target, str] | None:
    """The target to go back to, and in words why this one; None where the remedy goes back to none
    or nothing usable precedes the cause."""
    incident, usable, back = situation.incident, _usable(situation), situation.finding.remedy.back
    if not usable or back is GoBack.NO:
        return None
    cause = cause_step(incident)
    nearest, gap = usable[-1], cause - usable[-1].step
    dated = back is GoBack.BEFORE_STATE and situation.finding.mark is not None
    known = back is GoBack.BEFORE_CAUSE or dated
    few = back is GoBack.HEALTHY and few_batches(incident) and gap <= NEAR_STEPS
    healthy = _healthy(usable) or usable
    if known or few:
        target = nearest
        why = f", the newest target from before {'the cause' if known else 'it'}"
    elif back is GoBack.BEFORE_STATE or optimizer_suspect(incident):
        # Nearest to the wanted distance: twice as far costs more than it mends.
        steps = min(OPTIMIZER_BACK_STEPS, int(cause * OPTIMIZER_BACK_SHARE))
        target = min(healthy, key=lambda t: abs(t.step - (cause - steps)))
        why = (
            f": the optimizer's state is suspect, so the target nearest to {steps} steps back is "
            "wanted"
        )
    else:
        target, why = healthy[-1], ", the newest healthy one"
        dearer = nearest.step - target.step
        if target.health is not Health.HEALTHY:
            why = ", the newest that precedes it: none has proved healthy"
        elif (
            dearer > OPTIMIZER_BACK_STEPS and gap >= NEAR_STEPS and nearest.health is Health.PENDING
        ):
            target = nearest
            why = f", the newest that precedes it: a healthy one lies {dearer:,} further"
    why += _passed_over(target, situation, tried=known or few)
    return target, f"{_placed(target, incident)}{why}"


def worth_keeping(
    targets: Sequence[Target],
    *,
    incident: Incident | None,
    warned_step: int | None,
    ordered: Collection[str] = (),
) -> frozenset[str]:
    """Names of `targets` that a late decision may still want, so that no ring may drop them.

    The newest usable one, the newest of them on disk, which outlives the job, and the newest
    healthy one there, by the open `incident` or, while there is none, by `warned_step`, the step
    of a warning; and every one that is `ordered`.
    """
    kept = {target.name for target in targets if target.name in ordered}
    targets = _whole(targets)
    begun = set[int]() if warned_step is None else {warned_step}
    if incident is not None:
        begun = {cause_step(incident), diagnose(incident).struck_step}
    for struck in begun:
        before = _until(struck, targets)
        on_disk = [t for t in before if t.medium is Medium.DISK]
        wanted = (*before[-1:], *on_disk[-1:], *_healthy(on_disk)[-1:])
        kept |= {t.name for t in wanted}
    return frozenset(kept)


def left_if_job_dies(targets: Sequence[Target], incident: Incident) -> str:
    """What a restart could go back to if the job died now: disk outlives it, memory does not."""
    before = _until(diagnose(incident).struck_step, _whole(targets))
    on_disk = sorted((t for t in _whole(targets) if t.medium is Medium.DISK), key=_STEP)
    good = [t for t in before if t.medium is Medium.DISK]
    in_memory = [t for t in before if t.medium is Medium.MEMORY]
    said = "nothing is on disk to go on from"
    if good:
        said = f"step {good[-1].step:,} is on disk ({good[-1].name})"
    elif on_disk:
        said = (
            "no checkpoint on disk is from before the cause: a restart goes on inside the damage, "
            f"from step {on_disk[-1].step:,}"
        )
    if in_memory and (not good or in_memory[-1].step > good[-1].step):
        said = f"{said}; step {in_memory[-1].step:,} is in memory only and would be gone"
    damaged = [t for t in targets if t.damage is not None and t.medium is Medium.DISK]
    if damaged:
        oldest = min(damaged, key=_STEP)
        said = f"{said}; {oldest.name} is {oldest.doubt}"
    return f"If the job dies now: {said}"


def _usable(situation: Situation) -> list[Target]:
    """Whole targets before the cause, oldest first, without those that failed here before.

    The loss of step k was computed with the weights after k - 1, so the margin of two steps
    leaves out the update that may have done it.
    """
    refused = {action.target for action in rollbacks(situation, UNDONE)}
    before = _whole(_before(situation))
    existing = [t for t in before if t.name not in refused]
    tried = [action.step for action in rollbacks(situation, EXECUTED)]
    untried = [t for t in existing if not tried or t.step < min(tried)]
    return untried or existing


def _before(situation: Situation) -> list[Target]:
    """Targets from before the cause, oldest first."""
    return _until(situation.finding.struck_step, situation.targets)


def _until(struck: int, targets: Iterable[Target]) -> list[Target]:
    """Those whose state is taken for untouched by what moved at step `struck`, oldest first."""
    return sorted((t for t in targets if t.step <= struck - MARGIN_STEPS), key=_STEP)


def _passed_over(chosen: Target, situation: Situation, *, tried: bool) -> str:
    """Why a newer one from before the cause is not taken; empty where there is none. `tried`: also
    one that was tried."""
    newer = [t for t in _before(situation) if t.step > chosen.step]
    whole, why = _whole(newer), ""
    if tried and whole:
        undone = {action.target for action in rollbacks(situation, UNDONE)}
        failed = whole[-1].name in undone
        what = "which the job could not go back to" if failed else "after which it was there again"
        why = f" but for step {whole[-1].step}, {what}"
    damaged = next((t for t in reversed(newer) if t.damage is not None), None)
    if damaged is not None:
        why += f" ({damaged.name} is newer and damaged: {damaged.damage})"
    return why


def _whole(targets: Iterable[Target]) -> list[Target]:
    """Those in which no damage was found."""
    return [target for target in targets if target.damage is None]


def rollbacks(situation: Situation, states: Collection[CommandState]) -> list[Rollback]:
    """The rollbacks of this incident that are in one of `states`, oldest first."""
    return [
        past.action
        for past in situation.of_incident
        if isinstance(past.action, Rollback) and past.state in states
    ]


def _placed(target: Target, incident: Incident) -> str:
    """The target, where it lies, and what is not known of it."""
    said = f"; {target.doubt}" if target.doubt else ""
    steps = incident.newest_onset_step - target.step
    where = f"{target.medium}, step {target.step:,}, {steps:,} steps before the onset"
    return f"{target.name} ({where}{said})"


def _healthy(targets: Iterable[Target]) -> list[Target]:
    return [t for t in targets if t.health is Health.HEALTHY]


MARGIN_BATCHES = 2  # after the newest batch that stood out


def hedge_to_skip(situation: Situation, target: Target) -> BatchRange | None:
    """The batches from the onset to the peak, 5 to 20 where few did it; while the loss climbs, to
    the newest that stood out. What a level that stays up is trained on behind its peak is innocent.
    None where rows lie further apart, or the loss rose for longer before it was seen: nobody can
    say which."""
    incident, most = situation.incident, most_to_skip(situation)
    if max(rows_apart(incident), incident.detected_step - incident.onset_step) > most:
        return None
    few = few_batches(incident)
    if not few and incident.kind is Kind.DIVERGENT:
        last = incident.anomalous_step or incident.newest_step
    elif incident.recurred_step is not None:
        last = incident.newest_onset_step
    else:
        last = incident.peak_step
    return _range(incident, target, last, FEW_SKIP_MOST if few else most)


def rose_slowly(situation: Situation) -> bool:
    """Whether the loss rose for longer before it was seen than any batches that did it take."""
    incident = situation.incident
    least = max(most_to_skip(situation), SLOW_ROWS * rows_apart(incident))
    return incident.detected_step - incident.onset_step > least


def stood_out_to_skip(situation: Situation, target: Target) -> BatchRange:
    """From the cause to the newest batch that stood out; twice that while its end is not known."""
    incident = situation.incident
    last = incident.anomalous_step or incident.newest_step
    if last >= incident.newest_step:
        last += last - cause_step(incident)
    return _range(incident, target, last, max(SKIP_MOST, rows_apart(incident)))


def span_to_skip(situation: Situation, target: Target, mark: Mark) -> BatchRange | None:
    """Exactly the batches of the steps that stood out; None where their end is not known, or the
    spike came back."""
    incident = situation.incident
    if mark.last_step is None or incident.recurred_step is not None:
        return None
    first = max(target.position, _position_of(mark.first_step, incident, target))
    end = _position_of(mark.last_step + 1, incident, target)
    return BatchRange(first, end) if end > first else None


def returned_to_skip(situation: Situation, target: Target) -> BatchRange:
    """From the cause of the onset or of the return, whichever is the first, to the later peak: what
    was trained on again has the positions that it had."""
    incident = situation.incident
    then, now = incident.onset_batches, incident.recurred_batches
    assert then is not None
    assert now is not None
    began, peak = (
        then.first + (step - incident.onset_step) * len(then)
        for step in (began_step(incident) - 1, incident.peak_step)
    )
    first = max(target.position, min(began, now.first - len(now)))
    return _bounded(first, max(peak, now.first), most_to_skip(situation))


def most_to_skip(situation: Situation) -> int:
    """Batches: a long run skips up to 500, one of a few hundred steps hardly more than 20."""
    scaled = int(situation.incident.newest_onset_step * SKIP_SHARE)
    return min(SKIP_MOST, max(FEW_SKIP_MOST, scaled))


def widened(skipped: BatchRange, situation: Situation) -> BatchRange:
    """The skipped stretch and what lies behind it, where the spike came back at its end: as much
    again, and all that stood out since; twice that while its end is not known."""
    incident, last = situation.incident, situation.incident.anomalous_step or 0
    again, steps = incident.recurred_batches, max(0, last - incident.newest_onset_step)
    assert again is not None
    steps *= 2 if last >= incident.newest_step else 1
    reached = max(skipped.end, again.end) + max(len(skipped), FEW_SKIP_LEAST)
    reached = max(reached, again.end + steps * len(again) + MARGIN_BATCHES)
    return BatchRange(skipped.first, min(reached, skipped.first + 2 * SKIP_MOST))


def rows_apart(incident: Incident) -> int:
    """Steps between two rows of a log, as far as its incident tells; a job sends every step."""
    if incident.onset_batches is not None or incident.detected_step == incident.onset_step:
        return 1
    known = {incident.onset_step, incident.detected_step, incident.peak_step, incident.newest_step}
    return min(later - step for step, later in pairwise(sorted(known)))


def _range(incident: Incident, target: Target, last: int, most: int) -> BatchRange:
    """From the row before the cause on: what did it lies between the two."""
    began = cause_step(incident) - rows_apart(incident)
    first = max(target.position, _position_of(began, incident, target))
    return _bounded(first, _position_of(last, incident, target), most)


def _bounded(first: int, last: int, most: int) -> BatchRange:
    """Up to `last`, a position, with its margin."""
    return BatchRange(
        first, first + min(max(last + 1 + MARGIN_BATCHES - first, FEW_SKIP_LEAST), most)
    )


def _position_of(step: int, incident: Incident, target: Target) -> int:
    """What `step` consumed, counted from the onset's batches, else from the target's position."""
    batches = incident.newest_onset_batches
    if batches is not None:
        return max(0, batches.first - (incident.newest_onset_step - step) * len(batches))
    return target.position + max(0, step - target.step - 1)
