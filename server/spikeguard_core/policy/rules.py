"""The rules that decide what is proposed: the first of `RULES` that has an opinion does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spikeguard_core.lifecycle.command_life import EXECUTED, IN_FLIGHT
from spikeguard_core.lifecycle.incident import (
    Incident,
    had_non_finite,
    lasting_cause,
    lastingly_higher,
    stands_out,
    steps_behind,
)
from spikeguard_core.policy.finding import RETREAT, alone_moved
from spikeguard_core.policy.remedies import DATA, GoBack, Rate, Skip
from spikeguard_core.policy.rollback import (
    gone_back_from,
    lr_steps,
    recovery,
    with_its_batches,
)
from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import PastCommand, Situation
from spikeguard_core.policy.targeting import (
    FEW_SKIP_LEAST,
    MARGIN_STEPS,
    OPTIMIZER_BACK_STEPS,
    UNDONE,
    choose_target,
    rollbacks,
    rose_slowly,
    widened,
)
from spikeguard_protocol import (
    Action,
    Cause,
    IncidentState,
    Kind,
    Rollback,
    ScaleLr,
    Stop,
    Verb,
    Watch,
)
from spikeguard_protocol.phrases import batches_phrase, in_paragraphs, paragraphs

SURE_CONFIDENCE = 0.85  # in the kind, from which a rise within the noise is acted on too
PATIENCE_SHARE = 0.1  # of a run's steps, that a loss which stays up gets at most to heal
HARDER = (
    "The loss does not come down as after a bad batch: the data may be harder for good. If "
    "this data is there on purpose, going back does not help: note the new stage where it began "
    "(`spikeguard note --step {step}`), and this is withdrawn."
)
STILL_RAISED = (
    "The rate is still up. If the schedule raises it there on purpose (a warm restart, a new "
    "stage), reject this: the loss comes down as the rate does."
)
FAR_SHARE = 0.25  # of a run, that nobody but a person gives up


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command worth a decision, or the reason why there is none."""

    action: Action | None
    reason: str
    cause: Cause | None = None  # that the action follows from, if from one
    by_person: bool = False  # whatever the policy may approve itself
    expires_at_step: int | None = None  # void once this step has been trained


def _nothing_to_do(situation: Situation, _: Policy) -> Proposal | None:
    """A command is on its way, somebody watches, or no harm was done."""
    incident, step = situation.incident, situation.incident.onset_step
    changing = (p for p in situation.of_incident if p.verb is not Verb.WATCH)
    if incident.state is not IncidentState.OPEN or any(p.state in IN_FLIGHT for p in changing):
        return Proposal(None, "It is over, or a command is on its way or being judged.")
    for past in situation.of_incident:  # whoever said that they watch is left alone for as long
        until = None if past.ordered_by is None else _watch_ends(past, situation)
        if until is not None and situation.step < until:
            return Proposal(None, f"{past.ordered_by} watches it until step {until:,}.")
    if not incident.dropped or incident.recurrences or incident.kind is not Kind.RECOVERABLE:
        return None
    said = f"The agent kept the update of step {step} out of the weights: nothing to undo so far."
    return Proposal(None, said)


def _apart(situation: Situation, policy: Policy) -> Proposal | None:
    """Ranks that hold different weights: back to where they were equal; twice is the hardware."""
    since, said = situation.incident.apart_since, situation.said
    if since is None:
        return None
    if since == situation.incident.recurred_step:
        return Proposal(Stop(), f"{said} {situation.finding.remedy.at_stop}")
    why = _why_no_target(situation)
    lost = f"{said} What they train is lost, and there is no way back: {why}."
    return _roll_back(situation, policy) or Proposal(Stop(), lost)


def _alone(situation: Situation, policy: Policy) -> Proposal | None:
    """A signal that moved beside a calm loss: a person looks. Weights that no update changed are
    worth going back for, where that person says so."""
    if not alone_moved(situation.incident):
        return None
    if situation.finding.remedy.diagnosis is Cause.WEIGHT_CORRUPTION:
        found = _roll_back(situation, policy)
        return found and replace(found, by_person=True)
    return _watch(situation, policy, "The loss has not moved: nothing to undo so far.")


def _recoverable(situation: Situation, policy: Policy) -> Proposal | None:
    incident, offered = situation.incident, situation.offered
    if incident.kind is not Kind.RECOVERABLE:
        return None
    if offered is not None and incident.confidence < SURE_CONFIDENCE:  # swings: is asked about once
        cause = None if offered.cause is None else Cause(offered.cause)
        return Proposal(offered.action, situation.said, cause, by_person=True)
    return _watch(situation, policy, "Expected to heal by itself.")


def _noted(situation: Situation, policy: Policy) -> Proposal | None:
    """A new level where somebody changed the run on purpose is what that change does."""
    incident = situation.incident
    if situation.noted is None or incident.kind is not Kind.LINGERING:
        return None
    if had_non_finite(incident) or lasting_cause(incident.causes) is not None:
        return None
    return _watch(situation, policy, f"{situation.noted} What is meant is not undone.")


def _unsure(situation: Situation, policy: Policy) -> Proposal | None:
    """Nobody is asked below the confidence at which the policy acts. What somebody may be reading
    outlasts noise. A cause whose damage training does not heal is reason enough."""
    incident, least = situation.incident, policy.act_confidence
    if incident.confidence >= (least - RETREAT if situation.offered else least):
        return None
    if lasting_cause(incident.causes) is not None:
        return None
    said = (
        f"{incident.kind} has a probability of {incident.confidence:.0%}, acting takes {least:.0%}"
    )
    return Proposal(None, f"Not sure enough: {said}. {situation.said}")


def _too_early(situation: Situation, policy: Policy) -> Proposal | None:
    """A finite loss gets time to come back by itself, unless time tells no more: its batches would
    do it at every pass, or a sure cause did it that does not heal and going back now costs no more
    steps than the wait."""
    incident = situation.incident
    if incident.settled or had_non_finite(incident) or situation.offered:
        return None
    patience = min(
        policy.lingering_patience_steps,
        max(policy.patience_steps, int(situation.step * PATIENCE_SHARE)),
    )
    if with_its_batches(situation):
        return None
    if lasting_cause(incident.causes) is not None:
        choice = choose_target(situation)
        if choice is not None and situation.step - choice[0].step <= patience:
            return None
    if incident.confidence < SURE_CONFIDENCE and not stands_out(incident, incident.excess):
        said = f"The loss hardly stands out of its trend any more. {situation.said}"
        return Proposal(None, said)
    onset, newest = incident.newest_onset_step, incident.newest_step
    until = max(onset, incident.peak_step if incident.recurred_step is None else onset)
    if incident.kind is Kind.DIVERGENT and newest - until <= policy.patience_steps:
        until, patience = onset, policy.patience_steps  # it climbs, with a new peak again and again
    if newest >= until + patience:
        return None
    said = f"Too early: until step {until + patience:,} a finite loss gets time to come back by"
    return Proposal(None, f"{said} itself. {situation.said}")


def _by_hand(situation: Situation, _: Policy) -> Proposal | None:
    """No command mends it: what does is a change of the job."""
    finding = situation.finding
    if finding.remedy.back is not GoBack.NO:
        return None
    return Proposal(None, f"{situation.said} {finding.advice}")


def _hopeless(situation: Situation, _: Policy) -> Proposal | None:
    """What came back although its cause was gone back from: going back again is not a plan. Another
    fault behind it is no repetition."""
    finding = situation.finding
    after = finding.remedy.stop_after
    if after is None or gone_back_from(finding.remedy.diagnosis, situation) < after:
        return None
    said = in_paragraphs(situation.said, finding.sentence, finding.remedy.at_stop)
    return Proposal(Stop(), said)


def _given_up(situation: Situation, policy: Policy) -> Proposal | None:
    """Going back again and again is not a plan."""
    executed = rollbacks(situation, EXECUTED)
    if len(executed) < policy.most_rollbacks:
        return None
    return Proposal(
        Stop(),
        f"{len(executed)} rollbacks did not hold; the policy allows {policy.most_rollbacks} an "
        "incident. Stop and look before more compute is spent.",
    )


def _poisoned(situation: Situation, _: Policy) -> Proposal | None:
    """The spike came back where the last skip ended: the stretch of bad data is longer."""
    incident, executed = situation.incident, rollbacks(situation, EXECUTED)
    last, again = executed[-1] if executed else None, incident.recurred_batches
    if last is None or last.skip is None or again is None:
        return None
    behind = 0 <= again.first - last.skip.end <= max(len(last.skip), FEW_SKIP_LEAST)
    if not behind or situation.finding.remedy.skip is Skip.NOTHING:
        return None
    skipped, longer = batches_phrase(last.skip), "a longer stretch of the data looks poisoned."
    data = f"It came back with batch {again.first:,}, behind the skipped {skipped}"
    if incident.recurred_step == incident.onset_step:
        longer = (
            "a longer stretch of the data is poisoned, or it hangs on that step (the schedule, a "
            "change of the code)."
        )
    data += f": {longer}"
    if any(one.skip and one.skip.first == last.skip.first for one in executed[:-1]):
        said = f"{data} It was widened once already: replacing the data is yours to do."
        return Proposal(Stop(), said)
    if last.target not in {target.name for target in situation.targets}:
        return None
    skip = widened(last.skip, situation)
    said = (
        f"{data} Go back to {last.target} again and skip {batches_phrase(skip)} instead of "
        f"{skipped}. If it returns once more, the data has to be replaced, and that is yours to do."
    )
    return _unless_meant(Proposal(Rollback(last.target, last.step, skip), said), situation)


def _roll_back(situation: Situation, policy: Policy) -> Proposal | None:
    """One with a mitigation takes a person, unless the policy approves both."""
    found = recovery(situation, policy)
    if found is None:
        return None
    action, reason = found
    asks = policy.approval_of(Verb.APPLY).mode is not ApprovalMode.AUTO
    cause, asks = situation.finding.remedy.diagnosis, asks and action.apply is not None
    proposal = Proposal(action, reason, cause, by_person=asks)
    return _unless_meant(proposal, situation)


def _unless_meant(proposal: Proposal, situation: Situation) -> Proposal:
    """Data that has become harder for good is no damage, nor is a rate that its schedule raises,
    and a level that costs less than going back may stay: where it may be that, a person decides.
    Who was asked still is while the model learns that data."""
    incident, finding = situation.incident, situation.finding
    asked = lastingly_higher(incident) or situation.offered
    harder = bool(asked) and finding.remedy.diagnosis in DATA
    mark = finding.mark if incident.kind is Kind.LINGERING else None  # of a rate alone it is `back`
    raised = mark is not None and mark.back and mark.last_step is None
    price, dear = _price(proposal, situation)
    why = HARDER.format(step=incident.onset_step - 1) if harder else STILL_RAISED if raised else ""
    reason = in_paragraphs(*paragraphs(proposal.reason), price, why)
    asks = proposal.by_person or dear or harder or raised
    return replace(proposal, reason=reason, by_person=asks)


def _price(proposal: Proposal, situation: Situation) -> tuple[str, bool]:
    """What a rollback costs against a loss that is left as it is, where that is worth a word, and
    whether it is so much that a person decides."""
    assert isinstance(proposal.action, Rollback)
    incident, steps = situation.incident, situation.step - proposal.action.step
    behind = steps_behind(incident) if incident.kind is Kind.LINGERING else None
    far = steps > max(OPTIMIZER_BACK_STEPS, FAR_SHARE * situation.step)
    cheaper = behind is not None and behind < steps
    said = f"Going back trains {steps:,} steps again"
    if behind is not None and (cheaper or steps > OPTIMIZER_BACK_STEPS):
        less = ", which costs less unless it rises further" if cheaper else ""
        left = f"Left as it is, the loss stays some {behind:,} steps behind{less}."
        return f"{said}. {left}", far or cheaper
    return f"{said}, {steps / situation.step:.0%} of the run." if far else "", far


def _slow(situation: Situation, policy: Policy) -> Proposal | None:
    """What brought a slow rise is still there: a lower rate costs no step, where going back costs
    many and brings the same alone."""
    incident, found = situation.incident, recovery(situation, policy)
    if found is None or situation.finding.known or not rose_slowly(situation):
        return None
    action, steps = found[0], situation.step - found[0].step
    if _lost(incident) or incident.detected_step - action.step <= OPTIMIZER_BACK_STEPS:
        return None
    rose = incident.detected_step - incident.onset_step
    said = (
        f"{situation.said} It rose over {rose:,} steps before it was seen, so that no batch is "
        f"to blame, and going back alone brings it again. To {action.target} it would train "
        f"{steps:,} steps again; a lower rate costs none."
    )
    return _lower(situation, policy, said)


def _lower(situation: Situation, policy: Policy, *said: str) -> Proposal | None:
    """The learning rate at which it may come down, tried once."""
    ran = (past.verb for past in situation.of_incident if past.state in EXECUTED)
    if not situation.can(Verb.SCALE_LR) or Verb.SCALE_LR in ran:
        return None
    factor = policy.lr_factors[0]
    steps = lr_steps(situation.incident.newest_onset_step, policy)
    lower = f"Multiply the learning rate by {factor:.2f} for {steps} steps."
    return Proposal(ScaleLr(factor, steps), in_paragraphs(*said, lower))


def _without_target(situation: Situation, policy: Policy) -> Proposal | None:
    incident, cause = situation.incident, situation.finding.sentence
    said = f"{situation.said} There is no way back: {_why_no_target(situation)}."
    too_high = situation.finding.remedy.rate is Rate.LOWER or rose_slowly(situation)
    slower = too_high or incident.kind is Kind.DIVERGENT
    offered = None if situation.offered is None else situation.offered.verb
    if incident.confidence < SURE_CONFIDENCE and offered in (Verb.SCALE_LR, Verb.STOP):
        slower = offered is Verb.SCALE_LR  # what swings is asked about once
    lower = _lower(situation, policy, said, cause) if slower and not _lost(incident) else None
    if lower is not None:
        return lower
    if _lost(incident) or (slower and incident.kind is Kind.DIVERGENT):
        return Proposal(Stop(), in_paragraphs(said, cause))
    if any(past.verb is Verb.STOP and past.state in UNDONE for past in situation.of_incident):
        return Proposal(None, f"{said} The job did not stop when told to, so a person has to act.")
    stop = (
        "Stop it, and start again from a checkpoint of your own. Reject this if it may go on at "
        "the level that it is at."
    )
    return Proposal(Stop(), in_paragraphs(said, cause, stop), by_person=True)


RULES: tuple[Callable[[Situation, Policy], Proposal | None], ...] = (
    _nothing_to_do,
    _apart,
    _alone,
    _recoverable,
    _noted,
    _unsure,
    _hopeless,
    _too_early,
    _by_hand,
    _given_up,
    _poisoned,
    _slow,
    _roll_back,
    _without_target,
)


# --- parts of proposals ---


def _watch(situation: Situation, policy: Policy, why: str) -> Proposal:
    """Look again later, unless somebody or the policy is watching already."""
    ends = (_watch_ends(past, situation) for past in situation.of_incident)
    until = max((end for end in ends if end is not None), default=0)
    if situation.step < until:
        return Proposal(None, f"{why} Watched until step {until:,}.")
    again = situation.step + policy.watch_steps
    return Proposal(Watch(policy.watch_steps), f"{why} Look again at step {again:,}.")


def _watch_ends(past: PastCommand, situation: Situation) -> int | None:
    """The step at which a watch that was taken up ends; None for any other command."""
    if not isinstance(past.action, Watch) or past.state not in EXECUTED | IN_FLIGHT:
        return None
    return (situation.step if past.applied_step is None else past.applied_step) + past.action.steps


def _lost(incident: Incident) -> bool:
    """Whether the run learns nothing any more."""
    return incident.stuck or had_non_finite(incident)


def _why_no_target(situation: Situation) -> str:
    if not situation.can(Verb.ROLLBACK):
        return "this attempt cannot roll back"
    return (
        f"no checkpoint or snapshot that is whole and within reach lies {MARGIN_STEPS} steps or "
        f"more before step {situation.finding.struck_step:,}, where it began"
    )
