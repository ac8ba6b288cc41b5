"""The rollback that a finding leads to: its target, its batches, its learning rate, its reason."""

from __future__ import annotations

import math
from dataclasses import replace

from spikeguard_core.diagnosis.cause.of_data import same_batches
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import rise_batches
from spikeguard_core.policy.remedies import DATA, NOT_THE_DATA, WITH_ITS_BATCHES, Rate, Skip
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import Situation, Target
from spikeguard_core.policy.targeting import (
    choose_target,
    hedge_to_skip,
    returned_to_skip,
    rollbacks,
    rose_slowly,
    span_to_skip,
    stood_out_to_skip,
)
from spikeguard_protocol import BatchRange, Cause, Rollback, Verb
from spikeguard_protocol.phrases import (
    batches_phrase,
    in_paragraphs,
    sure_phrase,
    times_phrase,
)

WARM_UP_FACTOR = 0.1  # of a learning rate, while the second moment is filled again
WARM_UP_STEPS = 20  # at it, past the step at which it was seen to be spoilt
FILLED = "The learning rate starts low until the second moment is filled."
RATE_MARGIN = 5  # steps at the lowered rate past the last one that was raised
HEDGED_FROM = 0.5  # likelihood of the data, or of no known cause, where the cause is not known
LEAST_FACTOR = 0.05  # of a learning rate: by default an agent refuses a lower one


def recovery(situation: Situation, policy: Policy) -> tuple[Rollback, str] | None:
    """The rollback and its reason; None where there is no way back."""
    choice = choose_target(situation) if situation.can(Verb.ROLLBACK) else None
    if choice is None:
        return None
    target, why = choice
    back = Rollback(target.name, target.step, _skip(target, situation))
    # A mitigation takes the place of a lower rate, so that one change is judged.
    action = _with_mitigation(back, situation, policy) or _at_rate(back, situation, policy)
    return action, _reason(why, action, situation)


def gone_back_from(cause: Cause, situation: Situation) -> int:
    """Rollbacks of this incident that were carried out and put down to `cause`."""
    return sum(
        past.verb is Verb.ROLLBACK and past.state in EXECUTED and past.cause == cause
        for past in situation.of_incident
    )


def lr_steps(from_step: int, policy: Policy) -> int:
    """Steps at a learning rate that is lowered from `from_step` on: a quarter of the run until
    there, in tens. The step at which somebody looks does not count, or it would change with each.
    """
    return max(20, min(policy.lr_steps, from_step // 40 * 10))


def _skip(target: Target, situation: Situation) -> BatchRange | None:
    finding = situation.finding
    rule, mark = finding.remedy.skip, finding.mark
    if with_its_batches(situation):
        return returned_to_skip(situation, target)
    ranked = bool(situation.incident.causes) and not finding.known
    outside = ranked and finding.share(*DATA, Cause.UNKNOWN) < HEDGED_FROM  # of the data
    if rule is Skip.NOTHING or outside:
        return None
    hedge = hedge_to_skip(situation, target)
    if rule is Skip.HEDGE or (hedge is not None and mark is None):
        return hedge
    span = None if mark is None else span_to_skip(situation, target, mark)
    return span or stood_out_to_skip(situation, target)


def with_its_batches(situation: Situation) -> bool:
    """Whether its batches are skipped since it came back with them, whatever else did it."""
    incident = situation.incident
    then, now = rise_batches(incident), incident.recurred_batches
    if not situation.finding.remedy.again or then is None or now is None:
        return False
    skipped = (action.skip for action in rollbacks(situation, EXECUTED))
    apart = (one is None or one.end <= then.first or then.end <= one.first for one in skipped)
    return same_batches(then, now) and all(apart)


def _with_mitigation(back: Rollback, situation: Situation, policy: Policy) -> Rollback | None:
    """With the first that the job has registered and this incident has not tried, once going back
    without it did not hold; for as long as a rate would be lowered, and past where the spike began.
    Where the rate is to blame, or what comes back hangs on its batches, that is mended first."""
    incident, gone_back = situation.incident, rollbacks(situation, EXECUTED)
    if not gone_back or not situation.can(Verb.APPLY):
        return None
    rate = situation.finding.remedy.rate
    rate_first = rate is not Rate.KEEP and gone_back[-1].lr_factor is None
    tried = {action.apply for action in gone_back}
    name = next((name for name in situation.mitigations if name not in tried), None)
    if name is None or rate_first or with_its_batches(situation):
        return None
    past = incident.newest_onset_step - back.step
    return replace(back, apply=name, apply_steps=lr_steps(back.step, policy) + max(0, past))


def _at_rate(back: Rollback, situation: Situation, policy: Policy) -> Rollback:
    """After a spike that came back, going back alone only repeats it, unless another cause than
    before is known; a rate that did it is lowered at once, and one that jumped to what it was. A
    second moment that was spoilt at a known step is whole in the target."""
    finding, again = situation.finding, situation.incident.recurrences
    rate, mark = finding.remedy.rate, finding.mark
    if finding.known and rate is Rate.KEEP:
        again = gone_back_from(finding.remedy.diagnosis, situation)
    lower = rate is Rate.LOWER or (rate is Rate.WARM_UP and mark is None)
    place = again + (lower or (not finding.known and rose_slowly(situation)))
    if not place:
        return back
    gone_back = rollbacks(situation, EXECUTED)
    last = gone_back[-1] if gone_back and with_its_batches(situation) else None
    if last is not None and last.lr_factor is not None and last.lr_steps is not None:
        # There it reached past what was raised, and the end of that is not known yet.
        steps = max(1, last.step + last.lr_steps - back.step)
        return replace(back, lr_factor=last.lr_factor, lr_steps=steps, lr_cap=last.lr_cap)
    factor = policy.lr_factors[min(place, len(policy.lr_factors)) - 1]
    lowered = replace(back, lr_factor=factor, lr_steps=lr_steps(back.step, policy))
    if mark is None or rate is Rate.KEEP:
        return lowered
    most, more = WARM_UP_FACTOR, WARM_UP_STEPS
    if rate is Rate.LOWER:
        most, more = 1.0 / (mark.ratio or 1.0), RATE_MARGIN
    lowered = replace(lowered, lr_factor=max(LEAST_FACTOR, min(factor, most)))
    if mark.last_step is not None:  # over the last tenth the rate climbs
        steps = max(1, math.ceil((mark.last_step + more - back.step) / 0.9))
        lowered = replace(lowered, lr_steps=steps)
    # Not again where the steps of a rate that jumped were trained below a cap, and it came back.
    ends = (one.step + (one.lr_steps or 0) for one in gone_back if one.lr_cap is not None)
    capped = not any(mark.first_step <= end for end in ends)
    return replace(lowered, lr_cap=mark.usual) if capped else lowered


def _reason(target: str, action: Rollback, situation: Situation) -> str:
    """The verdict; the cause; what is done and why; what is not."""
    incident, finding = situation.incident, situation.finding
    remedy, with_it = finding.remedy, with_its_batches(situation)
    held = f"It came back {times_phrase(incident.recurrences)}." if incident.came_back else ""
    skipping = "" if action.skip is None else f", and skip {batches_phrase(action.skip)}"
    if skipping and with_it:
        skipping += ", with which it came back"
    elif skipping and remedy.skip is not Skip.SPAN:
        likely = sure_phrase(finding.share(*DATA))
        skipping += f" to be safe, although the data is {likely} likely"
    low = remedy.rate is Rate.WARM_UP and action.lr_factor is not None
    going_on = ""
    if action.apply is not None:
        price = situation.mitigations.get(action.apply)
        costs = f", which costs {price}" if price else ""
        on = f"go on with {action.apply} for {action.apply_steps:,} steps"
        going_on = f"Going back alone did not hold: {on}{costs}."
    return in_paragraphs(
        f"{incident.kind.capitalize()} ({incident.confidence:.0%}). {situation.said} {held}",
        finding.sentence,
        f"Go back to {target}{skipping}. {remedy.because} {FILLED if low else ''} "
        f"{WITH_ITS_BATCHES if with_it else ''} {going_on}",
        NOT_THE_DATA if action.skip is None else "",
    )
