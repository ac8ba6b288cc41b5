"""Whether a checkpoint may be trusted as a rollback target.

Law: pending until `horizon` steps have passed with no onset; suspect if an onset or a precursor
fell inside the horizon or an incident was open when it was taken; healthy otherwise. It returns
when the incident closes without damage or its damage is rolled back: what lies off the run's
present lineage does not count, so a rollback clears what it undid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spikeguard_protocol import Health, Outcome, SegmentId, SegmentPoint
from spikeguard_server.domain.diagnosis.lineage import Lineage
from spikeguard_server.domain.lifecycle.incident import Incident

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


def health_of(
    taken: SegmentPoint,
    *,
    newest_step: int,
    alarms: Iterable[Alarm],
    lineage: Lineage,
    horizon_steps: int = 100,
) -> Health:
    """The health of a target taken at `taken`, where `newest_step` is the run's newest step.

    Alarms off the lineage are ignored; a target off the lineage is suspect for ever.
    """
    if not lineage.holds(taken):
        return Health.SUSPECT
    present = [a for a in alarms if lineage.holds(SegmentPoint(a.segment, a.step))]
    if any(_casts_doubt(alarm, taken.step, horizon_steps) for alarm in present):
        return Health.SUSPECT
    return Health.HEALTHY if newest_step - taken.step >= horizon_steps else Health.PENDING


def _casts_doubt(alarm: Alarm, step: int, horizon_steps: int) -> bool:
    if alarm.step > step:
        return alarm.step - step <= horizon_steps
    return alarm.end_step is None or alarm.end_step > step
