"""What the policy would have proposed, had it watched this log, and what that would have cost.

Nothing is done: a log cannot answer a command. What no log says of a run is assumed (`Assumed`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from spikeguard_cli.wording import command_words
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.finding import checks_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.unattended import Targets, Unanswered, UnattendedRun
from spikeguard_protocol import BatchRange, Medium, Signal, TargetSaved, Watch, verb_of
from spikeguard_protocol.phrases import duration_phrase, paragraphs
from spikeguard_replay.judging import SEGMENT, monitor_of

KEPT = 64  # checkpoints before an onset among which the policy may choose


@dataclass(frozen=True)
class Assumed:
    """What the log does not say."""

    checkpoint_every: int = 1_000  # steps; 0 = no checkpoint was ever written
    step_time_s: float | None = None  # None = the median of the log, where it holds any


def advise(
    samples: Sequence[Sample],
    policy: Policy,
    assumed: Assumed,
    choice: DetectorChoice = DetectorChoice(),  # noqa: B008
) -> list[Unanswered]:
    """Every command that would have been proposed over `samples`, in order."""
    assumed = with_pace(assumed, samples)
    targets, monitor = _checkpoints(assumed), monitor_of(choice)
    run = UnattendedRun(policy, SEGMENT, targets, monitor, assumed.step_time_s)
    return [would for _, would in run.watch(samples) if would is not None]


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


def advice_json(advice: Sequence[Unanswered], policy: Policy, assumed: Assumed) -> dict[str, Any]:
    """As `--json` adds it."""
    return {
        "policy_version": policy.version,
        "currency": policy.currency,
        "assumed": assumptions(policy, assumed),
        "proposals": [_plain(one, policy) for one in advice],
    }


def _plain(one: Unanswered, policy: Policy) -> dict[str, Any]:
    action, cost = one.action, cost_of(one.action, one.situation, policy)
    arguments = {
        field.name: getattr(action, field.name)
        for field in fields(action)
        if getattr(action, field.name) is not None
    }
    if isinstance(skip := arguments.get("skip"), BatchRange):
        arguments["skip"] = [skip.first, skip.end]
    return {
        "incident": one.situation.incident.number,
        "step": one.situation.step,
        "verb": verb_of(action).value,
        "arguments": arguments,
        "approval": one.mode.value,
        "reason": one.proposal.reason,
        "checks": [] if isinstance(action, Watch) else checks_of(one.situation.incident),
        "cost": {"steps": cost.steps, "seconds": cost.seconds, "money": cost.money},
    }


def advice_listing(advice: Sequence[Unanswered], policy: Policy, assumed: Assumed) -> str:
    """A paragraph a command, after a line that says what was assumed."""
    count = f"{len(advice)} {'command' if len(advice) == 1 else 'commands'}"
    head = f"\nPolicy {policy.version} would have proposed {count}; nothing was done."
    said = f"Assumed: {'; '.join(assumptions(policy, assumed))}."
    told = (_paragraph(_plain(one, policy), policy.currency) for one in advice)
    return "\n".join([head, said, *told])


def _paragraph(one: dict[str, Any], currency: str) -> str:
    who = "the policy approves it" if one["approval"] == "auto" else "a person decides"
    why = "\n".join(f"    {said}" for said in paragraphs(one["reason"]))
    checks = "".join(f"\n    check first: {check}" for check in one["checks"])
    return (
        f"\n#{one['incident']}  step {one['step']:,}: {command_words(one)} ({who})\n"
        f"{why}{checks}\n    cost: {_cost(one['cost'], currency)}"
    )


def _cost(cost: dict[str, Any], currency: str) -> str:
    if not cost["steps"]:
        return "nothing to train anew"
    parts = [f"{cost['steps']:,} steps to train anew"]
    if cost["seconds"] is not None:
        parts.append(duration_phrase(cost["seconds"]))
    if cost["money"] is not None:
        parts.append(f"{cost['money']:,.2f} {currency}")
    return ", ".join(parts)
