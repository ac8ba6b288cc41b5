"""Which batches to leave out after a rollback.

Law: positions are data positions, one a step. The range begins with the batch whose update is the
first suspect and ends after the newest step that stood out, and it is bounded both ways.
"""

from __future__ import annotations

from spikeguard_protocol import BatchRange
from spikeguard_server.domain.lifecycle.damage import began_step, cause_step
from spikeguard_server.domain.lifecycle.incident import Incident
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.domain.policy.situation import Situation, Target
from spikeguard_server.domain.suspicion import Mark

MARGIN_BATCHES = 2  # after the newest batch that stood out


def few_to_skip(situation: Situation, target: Target, policy: Policy) -> BatchRange:
    """The few batches around the cause and the peak: 5 to 20 of them by default."""
    incident = situation.incident
    last = incident.newest_onset_step if incident.recurred_step is not None else incident.peak_step
    return _range(incident, target, last, policy.few_skip_least, policy.few_skip_most)


def many_to_skip(situation: Situation, target: Target, policy: Policy) -> BatchRange:
    """From the cause to the newest batch that stood out, scaled to the run."""
    incident = situation.incident
    last = incident.anomalous_step or incident.newest_step
    return _range(incident, target, last, policy.few_skip_least, most_to_skip(situation, policy))


def span_to_skip(situation: Situation, target: Target, mark: Mark) -> BatchRange | None:
    """Exactly the batches of the steps that stood out; None where their end is not known, or the
    spike came back."""
    incident = situation.incident
    if mark.last_step is None or incident.recurred_step is not None:
        return None
    first = max(target.position, _position_of(mark.first_step, incident, target))
    end = _position_of(mark.last_step + 1, incident, target)
    return BatchRange(first, end) if end > first else None


def returned_to_skip(situation: Situation, target: Target, policy: Policy) -> BatchRange:
    """From the cause of the onset or of the return, whichever is the first, to the later peak: what
    was trained on again has the positions that it had."""
    incident, batches = situation.incident, situation.incident.onset_batches
    assert batches is not None
    began, peak = (
        max(0, batches.first + (step - incident.onset_step) * len(batches))
        for step in (began_step(incident) - 1, incident.peak_step)
    )
    first = min(began, _position_of(cause_step(incident) - 1, incident, target))
    last = max(peak, _position_of(incident.newest_onset_step, incident, target))
    most = most_to_skip(situation, policy)
    return _bounded(max(target.position, first), last, policy.few_skip_least, most)


def most_to_skip(situation: Situation, policy: Policy) -> int:
    """Batches: a long run skips up to 500, one of a few hundred steps hardly more than 20."""
    scaled = int(situation.step * policy.skip_share)
    return min(policy.skip_most, max(policy.few_skip_most, scaled))


def widened(skipped: BatchRange, situation: Situation, policy: Policy) -> BatchRange:
    """The skipped stretch and what lies behind it, where the spike came back at its end: as much
    again, and all that stood out since; twice that while its end is not known."""
    incident, again = situation.incident, situation.incident.recurred_batches
    reached = max(skipped.end, again.end if again else 0) + max(len(skipped), policy.few_skip_least)
    if again is not None and incident.recurred_step is not None:
        last = incident.anomalous_step or 0
        steps = max(0, last - incident.recurred_step)
        steps *= 2 if last >= incident.newest_step else 1
        reached = max(reached, again.end + steps * len(again) + MARGIN_BATCHES)
    return BatchRange(skipped.first, min(reached, skipped.first + 2 * policy.skip_most))


def _range(incident: Incident, target: Target, last: int, least: int, most: int) -> BatchRange:
    first = max(target.position, _position_of(cause_step(incident) - 1, incident, target))
    return _bounded(first, _position_of(last, incident, target), least, most)


def _bounded(first: int, last: int, least: int, most: int) -> BatchRange:
    """Up to `last`, a position, with its margin."""
    return BatchRange(first, first + min(max(last + 1 + MARGIN_BATCHES - first, least), most))


def _position_of(step: int, incident: Incident, target: Target) -> int:
    """What `step` consumed, counted from the onset's batches, else from the target's position."""
    batches = incident.newest_onset_batches
    if batches is not None:
        return max(0, batches.first - (incident.newest_onset_step - step) * len(batches))
    return target.position + max(0, step - target.step - 1)
