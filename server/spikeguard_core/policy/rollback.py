"""The rollback that a finding leads to: its target, its batches, its learning rate, its reason."""

from __future__ import annotations

import math

from spikeguard_core.diagnosis.cause.of_return import same_batches
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.damage import rise_batches
from spikeguard_core.policy.finding import Finding, diagnose
from spikeguard_core.policy.remedies import (
    DATA,
    NOT_THE_DATA,
    WITH_ITS_BATCHES,
    Diagnosis,
    Rate,
    Skip,
)
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import Situation
from spikeguard_core.policy.targeting import (
    ChosenTarget,
    choose_target,
    hedge_to_skip,
    returned_to_skip,
    rollbacks,
    rose_slowly,
    span_to_skip,
    stood_out_to_skip,
)
from spikeguard_core.suspicion import Mark
from spikeguard_protocol import BatchRange, Rollback, Verb
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
LEAST_FACTOR = 0.05  # of a learning rate: by default an agent refuses a lower one


def finding_of(situation: Situation) -> Finding:
    """The incident's finding, as steady as the proposal that waits."""
    offered = situation.offered
    return diagnose(situation.incident, None if offered is None else offered.cause)


def recovery(situation: Situation, policy: Policy) -> tuple[Rollback, str, Diagnosis] | None:
    """The rollback, its reason and its cause; None where there is no way back."""
    if not situation.can(Verb.ROLLBACK):
        return None
    finding = finding_of(situation)
    choice = choose_target(situation, finding.remedy.back, finding.mark)
    if choice is None:
        return None
    skip = _skip(choice, finding, situation)
    apply, apply_steps = _mitigation(choice, finding, situation, policy)
    factor, steps, cap = _lr(choice, finding, situation, policy, mitigated=apply is not None)
    action = Rollback(
        choice.target.name, choice.target.step, skip, factor, steps, cap, apply, apply_steps
    )
    return action, _reason(choice, action, finding, situation), finding.remedy.diagnosis


def said_of(situation: Situation) -> str:
    """The incident's own reason, as a sentence."""
    reason = situation.incident.reason.strip()
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}." if reason else ""


def gone_back_from(cause: Diagnosis, situation: Situation) -> int:
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


def _skip(choice: ChosenTarget, finding: Finding, situation: Situation) -> BatchRange | None:
    rule, mark = finding.remedy.skip, finding.mark
    if with_its_batches(finding, situation):
        return returned_to_skip(situation, choice.target)
    if not _may_be_data(finding):
        return None
    hedge = hedge_to_skip(situation, choice.target)
    if rule is Skip.HEDGE or (hedge is not None and mark is None):
        return hedge
    span = None if mark is None else span_to_skip(situation, choice.target, mark)
    return span or stood_out_to_skip(situation, choice.target)


def _may_be_data(finding: Finding) -> bool:
    """Whether to skip batches: no hedge where what is likely lies outside the data."""
    rule = finding.remedy.skip
    if rule is not Skip.HEDGE or not finding.ranking:
        return rule is not Skip.NOTHING
    return finding.share(*DATA, Diagnosis.UNKNOWN) >= finding.remedy.hedged_from


def with_its_batches(finding: Finding, situation: Situation) -> bool:
    """Whether its batches are skipped since it came back with them, whatever else did it."""
    remedy, incident = finding.remedy, situation.incident
    then, now = rise_batches(incident), incident.recurred_batches
    if not remedy.again or then is None or now is None or not same_batches(then, now):
        return False
    gone_back = rollbacks(situation, EXECUTED)
    return not any(_skipped(then, action.skip) for action in gone_back)


def _skipped(batches: BatchRange, skip: BatchRange | None) -> bool:
    return skip is not None and batches.first < skip.end and skip.first < batches.end


def _mitigation(
    choice: ChosenTarget, finding: Finding, situation: Situation, policy: Policy
) -> tuple[str | None, int | None]:
    """The first that the job has registered and this incident has not tried, once going back
    without it did not hold; for as long as a rate would be lowered, and past where the spike began.
    Where the rate is to blame, or what comes back hangs on its batches, that is mended first."""
    gone_back = rollbacks(situation, EXECUTED)
    if not situation.incident.recurrences or not gone_back:
        return None, None
    rate_first = finding.remedy.rate is not Rate.KEEP and gone_back[-1].lr_factor is None
    if rate_first or with_its_batches(finding, situation):
        return None, None
    tried, from_step = {action.apply for action in gone_back}, choice.target.step
    untried = (name for name in situation.mitigations if name not in tried)
    name = next(untried, None) if situation.can(Verb.APPLY) else None
    if name is None:
        return None, None
    past = situation.incident.newest_onset_step - from_step
    return name, lr_steps(from_step, policy) + max(0, past)


def _lr(
    choice: ChosenTarget,
    finding: Finding,
    situation: Situation,
    policy: Policy,
    *,
    mitigated: bool = False,
) -> tuple[float | None, int | None, float | None]:
    """Factor, steps and cap. After a spike that came back, going back alone only repeats it, unless
    another cause than before is known; a rate that did it is lowered at once, and one that jumped
    to what it was. A second moment that was spoilt at a known step is whole in the target."""
    remedy, again = finding.remedy, situation.incident.recurrences
    if finding.known and finding.remedy.rate is Rate.KEEP:
        again = min(again, gone_back_from(remedy.diagnosis, situation))
    if mitigated:  # in place of a lower rate, so that one change is judged
        return None, None, None
    whole = remedy.rate is Rate.WARM_UP and finding.mark is not None
    lower = remedy.rate is not Rate.KEEP and not whole
    place = again + (lower or (not finding.known and rose_slowly(situation)))
    if not place:
        return None, None, None
    factor = policy.lr_factors[min(place, len(policy.lr_factors)) - 1]
    steps = lr_steps(choice.target.step, policy)
    lowered = _lowered_before(choice, finding, situation)
    if lowered is not None:
        return lowered
    cap = None
    if finding.mark is not None:
        factor, steps = _past(finding.mark, remedy.rate, factor, steps, choice)
        cap = None if _capped(finding.mark, situation) else finding.mark.usual
    return factor, steps, cap


def _capped(mark: Mark, situation: Situation) -> bool:
    """Whether the steps of a rate that jumped were trained below a cap, and it came back."""
    ends = (
        a.step + (a.lr_steps or 0) for a in rollbacks(situation, EXECUTED) if a.lr_cap is not None
    )
    return any(mark.first_step <= end for end in ends)


def _lowered_before(
    choice: ChosenTarget, finding: Finding, situation: Situation
) -> tuple[float, int, float | None] | None:
    """The rate as it was lowered at the same batches: there it reached past what was raised, and
    the end of that is not known yet."""
    gone_back = rollbacks(situation, EXECUTED)
    if not gone_back or not with_its_batches(finding, situation):
        return None
    last = gone_back[-1]
    if last.lr_factor is None or last.lr_steps is None:
        return None
    steps = max(1, last.step + last.lr_steps - choice.target.step)
    return last.lr_factor, steps, last.lr_cap


def _past(
    mark: Mark, rate: Rate, factor: float, steps: int, choice: ChosenTarget
) -> tuple[float, int]:
    """The factor that takes back what was seen, and steps that reach past it; over their last
    tenth the rate climbs."""
    if rate is Rate.LOWER and mark.ratio is not None:
        factor, more = min(factor, 1.0 / mark.ratio), RATE_MARGIN
    elif rate is Rate.WARM_UP:
        factor, more = min(factor, WARM_UP_FACTOR), WARM_UP_STEPS
    else:
        return factor, steps
    if mark.last_step is not None:
        steps = max(1, math.ceil((mark.last_step + more - choice.target.step) / 0.9))
    return max(LEAST_FACTOR, factor), steps


def _reason(choice: ChosenTarget, action: Rollback, finding: Finding, situation: Situation) -> str:
    """The verdict; the cause; what is done and why; what is not."""
    incident, remedy = situation.incident, finding.remedy
    again = incident.recurrences
    held = f"It came back {times_phrase(again)}." if incident.came_back else ""
    with_it = with_its_batches(finding, situation)
    low = FILLED if remedy.rate is Rate.WARM_UP and action.lr_factor is not None else ""
    return in_paragraphs(
        f"{incident.kind.capitalize()} ({incident.confidence:.0%}). {said_of(situation)} {held}",
        finding.sentence,
        f"Go back to {choice.reason}{_skipping(action.skip, finding, situation)}. "
        f"{remedy.because} {low} {WITH_ITS_BATCHES if with_it else ''} "
        f"{_going_on(action, situation)}",
        NOT_THE_DATA if action.skip is None else "",
    )


def _going_on(action: Rollback, situation: Situation) -> str:
    """With what the run goes on, why, and what that costs."""
    if action.apply is None:
        return ""
    price = situation.mitigations.get(action.apply, "")
    price = f", which costs {price}" if price else ""
    on = f"go on with {action.apply} for {action.apply_steps:,} steps{price}."
    return f"Going back alone did not hold: {on}"


def _skipping(skip: BatchRange | None, finding: Finding, situation: Situation) -> str:
    if skip is None:
        return ""
    words = f", and skip {batches_phrase(skip)}"
    if with_its_batches(finding, situation):
        return f"{words}, with which it came back"
    if finding.remedy.skip is Skip.SPAN:
        return words
    return f"{words} to be safe, although the data is {sure_phrase(finding.share(*DATA))} likely"
