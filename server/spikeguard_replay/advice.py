"""What the policy would have proposed, had it watched this log, and what that would have cost.

Nothing is done: a log cannot answer a command. What no log says of a run is assumed (`Assumed`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from spikeguard_cli.wording import command_words, duration
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.cost import Cost, cost_of
from spikeguard_core.policy.finding import checks_of
from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.unattended import Targets, Unanswered, UnattendedRun
from spikeguard_protocol import (
    Action,
    Medium,
    Signal,
    TargetSaved,
    Verb,
    verb_of,
)
from spikeguard_protocol.phrases import paragraphs
from spikeguard_replay.judging import SEGMENT, monitor_of

KEPT = 64  # checkpoints before an onset among which the policy may choose


@dataclass(frozen=True)
class Assumed:
    """What the log does not say."""

    checkpoint_every: int = 1_000  # steps; 0 = no checkpoint was ever written
    step_time_s: float | None = None  # None = the median of the log, where it holds any


@dataclass(frozen=True)
class Advice:
    """A command that would have been proposed."""

    incident: int  # from 1, in the order of the listing
    step: int  # when
    action: Action
    reason: str
    cost: Cost  # if it had been carried out at `step`
    mode: ApprovalMode  # who would have had to say yes
    checks: tuple[str, ...] = ()  # to look at before saying so

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        skip = getattr(self.action, "skip", None)
        arguments = {
            one.name: getattr(self.action, one.name)
            for one in fields(self.action)
            if one.name != "skip" and getattr(self.action, one.name) is not None
        }
        if skip is not None:
            arguments["skip"] = [skip.first, skip.end]
        return {
            "incident": self.incident,
            "step": self.step,
            "verb": verb_of(self.action).value,
            "arguments": arguments,
            "approval": self.mode.value,
            "reason": self.reason,
            "checks": list(self.checks),
            "cost": {
                "steps": self.cost.steps,
                "seconds": self.cost.seconds,
                "money": self.cost.money,
            },
        }


def advise(
    samples: Sequence[Sample],
    policy: Policy,
    assumed: Assumed,
    choice: DetectorChoice = DetectorChoice(),  # noqa: B008
) -> list[Advice]:
    """Every command that would have been proposed over `samples`, in order."""
    assumed = with_pace(assumed, samples)
    targets, monitor = _checkpoints(assumed), monitor_of(choice)
    run = UnattendedRun(policy, SEGMENT, targets, monitor, assumed.step_time_s)
    found = [would for _, would in run.watch(samples)]
    return [_advice(one, policy) for one in found if one is not None]


def _advice(one: Unanswered, policy: Policy) -> Advice:
    situation, verb = one.situation, verb_of(one.action)
    return Advice(
        situation.incident.number,
        situation.step,
        one.action,
        one.proposal.reason,
        cost_of(one.action, situation, policy),
        one.mode,
        () if verb is Verb.WATCH else checks_of(situation.incident),
    )


def with_pace(assumed: Assumed, samples: Sequence[Sample]) -> Assumed:
    """The same, with the time of a step as the log has it where nothing else is assumed."""
    name = Signal.STEP_TIME.value
    times = [one.values[name] for one in samples if name in one.values]
    if assumed.step_time_s is not None or not times:
        return assumed
    return replace(assumed, step_time_s=statistics.median(times))


def _checkpoints(assumed: Assumed) -> Targets:
    """The newest checkpoints before an onset and the newest of all."""

    def targets(onset_step: int, step: int) -> Iterator[TargetSaved]:
        every = assumed.checkpoint_every
        if every <= 0:
            return
        last = onset_step // every
        numbers = [*range(max(1, last - KEPT), last + 1)]
        if (newest := step // every) > last:
            numbers.append(newest)
        for at in (number * every for number in numbers):
            yield TargetSaved(f"step-{at}", SEGMENT.number, at, at, Medium.DISK)

    return targets


def assumptions(policy: Policy, assumed: Assumed) -> list[str]:
    """What the log did not say, in sentences."""
    every = assumed.checkpoint_every
    saved = f"a checkpoint every {every:,} steps, all kept" if every else "no checkpoint"
    pace = assumed.step_time_s
    paced = "step time unknown" if pace is None else f"{pace:g} s a step"
    price = policy.price_per_hour
    priced = "no price" if price is None else f"{price:g} {policy.currency} an hour"
    return [
        saved,
        paced,
        priced,
        "one batch a step",
        "every command can be carried out",
        "nobody answered any proposal",
    ]


def advice_json(advice: Sequence[Advice], policy: Policy, assumed: Assumed) -> dict[str, Any]:
    """As `--json` adds it."""
    return {
        "policy_version": policy.version,
        "currency": policy.currency,
        "assumed": assumptions(policy, assumed),
        "proposals": [one.plain() for one in advice],
    }


def advice_listing(advice: Sequence[Advice], policy: Policy, assumed: Assumed) -> str:
    """A paragraph a command, after a line that says what was assumed."""
    count = f"{len(advice)} {'command' if len(advice) == 1 else 'commands'}"
    head = f"\nPolicy {policy.version} would have proposed {count}; nothing was done."
    said = f"Assumed: {'; '.join(assumptions(policy, assumed))}."
    return "\n".join([head, said, *(_paragraph(one, policy) for one in advice)])


def _paragraph(one: Advice, policy: Policy) -> str:
    who = "the policy approves it" if one.mode.value == "auto" else "a person decides"
    why = "\n".join(f"    {said}" for said in paragraphs(one.reason))
    checks = "".join(f"\n    check first: {check}" for check in one.checks)
    return (
        f"\n#{one.incident}  step {one.step:,}: {command_words(one.plain())} ({who})\n"
        f"{why}{checks}\n    cost: {_cost(one, policy)}"
    )


def _cost(one: Advice, policy: Policy) -> str:
    cost = one.cost
    if not cost.steps:
        return "nothing to train anew"
    parts = [f"{cost.steps:,} steps to train anew"]
    if cost.seconds is not None:
        parts.append(duration(cost.seconds))
    if cost.money is not None:
        parts.append(f"{cost.money:,.2f} {policy.currency}")
    return ", ".join(parts)
