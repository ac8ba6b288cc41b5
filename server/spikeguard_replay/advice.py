"""What the policy would have proposed, had it watched this log, and what that would have cost.

Nothing is done: a log cannot answer a command. What no log says of a run is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from spikeguard_cli.wording import command_words, cost_words
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.finding import checks_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.unattended import Unanswered, UnattendedRun
from spikeguard_protocol import Medium, Signal, TargetSaved, Watch, verb_of
from spikeguard_protocol.phrases import paragraphs
from spikeguard_replay.judging import SEGMENT

_COSTS = ("steps", "seconds", "money", "waiting_steps", "waiting_money")
KEPT = 64  # checkpoints before an onset among which the policy may choose


def advise(
    samples: Sequence[Sample],
    policy: Policy,
    checkpoint_every: int = 1_000,
    step_time_s: float | None = None,
    choice: DetectorChoice = DetectorChoice(),  # noqa: B008
) -> dict[str, Any]:
    """What would have been proposed over `samples`, as `--json` adds it.

    `checkpoint_every` is in steps; 0: no checkpoint was ever written. The time of a step is the
    log's median where none is given.
    """
    name = Signal.STEP_TIME.value
    times = [one.values[name] for one in samples if name in one.values]
    if step_time_s is None and times:
        step_time_s = median(times)
    every, price = checkpoint_every, policy.price_per_hour

    def targets(onset_step: int, step: int) -> Iterator[TargetSaved]:
        """The newest checkpoints before an onset and the newest of all."""
        if every:
            last, newest = onset_step // every, step // every
            for number in sorted({*range(max(1, last - KEPT), last + 1), newest} - {0}):
                at = number * every
                yield TargetSaved(f"step-{at}", SEGMENT.number, at, at, Medium.DISK)

    run = UnattendedRun(policy, SEGMENT, targets, Monitor(choice), step_time_s)
    return {
        "policy_version": policy.version,
        "currency": policy.currency,
        "assumed": [
            f"a checkpoint every {every:,} steps, all kept" if every else "no checkpoint",
            "step time unknown" if step_time_s is None else f"{step_time_s:g} s a step",
            "no price" if price is None else f"{price:g} {policy.currency} an hour",
            "one batch a step",
            "every command can be carried out",
            "nobody answered any proposal",
        ],
        "proposals": [_plain(one, policy) for _, one in run.watch(samples) if one is not None],
    }


def advice_listing(advice: Mapping[str, Any]) -> str:
    """A paragraph a command, after a line that says what was assumed."""
    number, version = len(advice["proposals"]), advice["policy_version"]
    count = f"{number} {'command' if number == 1 else 'commands'}"
    head = f"\nPolicy {version} would have proposed {count}; nothing was done."
    assumed = f"Assumed: {'; '.join(advice['assumed'])}."
    return "\n".join([head, assumed, *map(_paragraph, advice["proposals"])])


def _plain(one: Unanswered, policy: Policy) -> dict[str, Any]:
    action, cost = one.action, cost_of(one.action, one.situation, policy)
    arguments = {
        name: [*value.values()] if isinstance(value, dict) else value  # of batches: first, end
        for name, value in asdict(action).items()
        if value is not None
    }
    return {
        "incident": one.situation.incident.number,
        "step": one.situation.step,
        "verb": verb_of(action).value,
        "arguments": arguments,
        "approval": policy.approval_of(verb_of(action)).mode.value,
        "reason": one.proposal.reason,
        "checks": [] if isinstance(action, Watch) else checks_of(one.situation.incident),
        "cost": {"currency": policy.currency, **{name: getattr(cost, name) for name in _COSTS}},
    }


def _paragraph(one: dict[str, Any]) -> str:
    who = "the policy approves it" if one["approval"] == "auto" else "a person decides"
    why = "\n".join(f"    {said}" for said in paragraphs(one["reason"]))
    checks = "".join(f"\n    check first: {check}" for check in one["checks"])
    return (
        f"\n#{one['incident']}  step {one['step']:,}: {command_words(one)} ({who})\n"
        f"{why}{checks}\n    costs: {cost_words(one['cost'])}"
    )
