"""What the policy would have proposed, had it watched this log, and what that would have cost.

Nothing is done: a log cannot answer a command. What no log says of a run is assumed (`Assumed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from spikeguard_cli.wording import command_words, cost_words
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.finding import checks_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.unattended import Targets, Unanswered, UnattendedRun
from spikeguard_protocol import Medium, Signal, TargetSaved, Watch, verb_of
from spikeguard_protocol.phrases import paragraphs
from spikeguard_replay.judging import SEGMENT

_COSTS = ("steps", "seconds", "money", "waiting_steps", "waiting_money")
KEPT = 64  # checkpoints before an onset among which the policy may choose


@dataclass(frozen=True)
class Advice:
    """Every command that `policy` would have proposed, in order, and what was assumed for it."""

    policy: Policy
    checkpoint_every: int  # steps; 0: no checkpoint was ever written
    step_time_s: float | None  # None: not known
    proposals: list[Unanswered]

    @property
    def assumed(self) -> list[str]:
        """What the log did not say, in sentences."""
        every, pace, price = self.checkpoint_every, self.step_time_s, self.policy.price_per_hour
        return [
            f"a checkpoint every {every:,} steps, all kept" if every else "no checkpoint",
            "step time unknown" if pace is None else f"{pace:g} s a step",
            "no price" if price is None else f"{price:g} {self.policy.currency} an hour",
            "one batch a step",
            "every command can be carried out",
            "nobody answered any proposal",
        ]

    def plain(self) -> dict[str, Any]:
        """As `--json` adds it."""
        return {
            "policy_version": self.policy.version,
            "currency": self.policy.currency,
            "assumed": self.assumed,
            "proposals": [_plain(one, self.policy) for one in self.proposals],
        }

    def listing(self) -> str:
        """A paragraph a command, after a line that says what was assumed."""
        number = len(self.proposals)
        count = f"{number} {'command' if number == 1 else 'commands'}"
        head = f"\nPolicy {self.policy.version} would have proposed {count}; nothing was done."
        told = (_paragraph(_plain(one, self.policy)) for one in self.proposals)
        return "\n".join([head, f"Assumed: {'; '.join(self.assumed)}.", *told])


def advise(
    samples: Sequence[Sample],
    policy: Policy,
    checkpoint_every: int = 1_000,
    step_time_s: float | None = None,
    choice: DetectorChoice = DetectorChoice(),  # noqa: B008
) -> Advice:
    """What would have been proposed over `samples`; the time of a step is the log's median where
    none is given."""
    name = Signal.STEP_TIME.value
    times = [one.values[name] for one in samples if name in one.values]
    if step_time_s is None and times:
        step_time_s = median(times)
    targets = _checkpoints(checkpoint_every)
    run = UnattendedRun(policy, SEGMENT, targets, Monitor(choice), step_time_s)
    proposals = [would for _, would in run.watch(samples) if would is not None]
    return Advice(policy, checkpoint_every, step_time_s, proposals)


def _checkpoints(every: int) -> Targets:
    """The newest checkpoints before an onset and the newest of all."""

    def targets(onset_step: int, step: int) -> Iterator[TargetSaved]:
        if every:
            last, newest = onset_step // every, step // every
            for number in sorted({*range(max(1, last - KEPT), last + 1), newest} - {0}):
                at = number * every
                yield TargetSaved(f"step-{at}", SEGMENT.number, at, at, Medium.DISK)

    return targets


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
