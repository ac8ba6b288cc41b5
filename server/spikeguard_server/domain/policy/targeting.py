"""Where a rollback should go: the choice among the targets that precede the cause.

Law: a target is judged by where it lies before the cause and by its health. A target that was
tried in this incident and did not hold is not tried again while an older one exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from spikeguard_protocol import CommandState, Health, Medium, Rollback
from spikeguard_server.domain.lifecycle.command_life import EXECUTED
from spikeguard_server.domain.lifecycle.damage import (
    LOOKBACK_STEPS,
    cause_step,
    few_batches,
    optimizer_suspect,
)
from spikeguard_server.domain.lifecycle.incident import Incident
from spikeguard_server.domain.policy.remedies import GoBack
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.domain.policy.situation import Situation, Target
from spikeguard_server.domain.suspicion import Mark

UNDONE = frozenset({CommandState.REFUSED, CommandState.FAILED})  # the target may be gone


@dataclass(frozen=True, slots=True)
class ChosenTarget:
    """A target, and in words why this one."""

    target: Target
    reason: str
    just_before: bool = False  # only a few batches have to be skipped from here


def choose_target(
    situation: Situation, policy: Policy, back: GoBack = GoBack.HEALTHY, mark: Mark | None = None
) -> ChosenTarget | None:
    """The target to go back to; None where nothing usable precedes the cause.

    `mark`: where the cause shows, if it is known.
    """
    incident = situation.incident
    usable = _usable(situation, policy, mark)
    if not usable or back is GoBack.NO:
        return None
    nearest = usable[-1]
    if back is GoBack.BEFORE_CAUSE or (back is GoBack.BEFORE_STATE and mark is not None):
        return ChosenTarget(
            nearest, f"{_placed(nearest, incident)}, the newest from before the cause"
        )
    gap = cause_step(incident) - nearest.step
    if (
        back is GoBack.HEALTHY
        and few_batches(incident, policy.few_steps)
        and gap <= policy.near_steps
    ):
        return ChosenTarget(
            nearest, f"{_placed(nearest, incident)}, the newest from before it", True
        )
    if back is GoBack.BEFORE_STATE or optimizer_suspect(incident):
        return _far_back(usable, situation, policy)
    return _newest_healthy(usable, incident)


def last_usable_step(cause: int, policy: Policy) -> int:
    """The newest step whose state is taken for untouched by what moved at step `cause`."""
    return cause - policy.margin_steps


def worth_keeping(
    targets: Sequence[Target],
    policy: Policy,
    *,
    incident: Incident | None,
    warned_step: int | None,
    ordered: Collection[str] = (),
) -> frozenset[str]:
    """Names of `targets` that a late decision may still want, so that no ring may drop them.

    The newest usable one and the newest healthy one on disk, by the open `incident` or, while
    there is none, by `warned_step`, the step of a warning; and every one that is `ordered`.
    """
    kept = {target.name for target in targets if target.name in ordered}
    cause = cause_step(incident) if incident is not None else warned_step
    if cause is None:
        return frozenset(kept)
    last = last_usable_step(cause, policy)
    before = sorted((t for t in targets if t.step <= last), key=lambda t: t.step)
    on_disk = [t for t in _healthy(before) if t.medium is Medium.DISK]
    return frozenset(kept | {t.name for t in (*before[-1:], *on_disk[-1:])})


def _usable(situation: Situation, policy: Policy, mark: Mark | None = None) -> list[Target]:
    """Targets before the cause, oldest first, without those that failed here before.

    The loss of step k was computed with the weights after k - 1, so the margin of two steps
    leaves out the update that may have done it.
    """
    last = last_usable_step(_struck(situation.incident, mark), policy)
    before = [t for t in situation.targets if t.step <= last]
    refused = {action.target for action, state in rollbacks(situation) if state in UNDONE}
    existing = sorted((t for t in before if t.name not in refused), key=lambda t: t.step)
    tried = [action.step for action, state in rollbacks(situation) if state in EXECUTED]
    untried = [t for t in existing if not tried or t.step < min(tried)]
    return untried or existing


def _struck(incident: Incident, mark: Mark | None) -> int:
    """The step at which the cause struck; of a spike that came back, that of the return."""
    first = cause_step(incident)
    if mark is None or incident.recurred_step is not None:
        return first
    return min(first, max(mark.first_step, first - LOOKBACK_STEPS))


def rollbacks(situation: Situation) -> list[tuple[Rollback, CommandState]]:
    """The rollbacks that this incident has seen, oldest first."""
    return [(p.action, p.state) for p in situation.of_incident if isinstance(p.action, Rollback)]


def _far_back(usable: list[Target], situation: Situation, policy: Policy) -> ChosenTarget:
    """The target nearest to the wanted distance: twice as far costs more than it mends."""
    incident = situation.incident
    back = min(policy.optimizer_back_steps, int(situation.step * policy.optimizer_back_share))
    wanted = cause_step(incident) - back
    target = min(_healthy(usable) or usable, key=lambda t: abs(t.step - wanted))
    return ChosenTarget(
        target,
        f"{_placed(target, incident)}: the optimizer's state is suspect, so the target nearest to "
        f"{back} steps back is wanted",
    )


def _newest_healthy(usable: list[Target], incident: Incident) -> ChosenTarget:
    healthy = _healthy(usable)
    if healthy:
        target = _newest(healthy)
        return ChosenTarget(target, f"{_placed(target, incident)}, the newest healthy one")
    target = _newest(usable)
    return ChosenTarget(
        target,
        f"{_placed(target, incident)}; no target from before the spike has proved healthy, "
        f"this one is {target.health} and the newest that precedes it",
    )


def _placed(target: Target, incident: Incident) -> str:
    steps = incident.newest_onset_step - target.step
    return f"{target.name} ({target.medium}, step {target.step}, {steps} steps before the onset)"


def _healthy(targets: Iterable[Target]) -> list[Target]:
    return [t for t in targets if t.health is Health.HEALTHY]


def _newest(targets: Iterable[Target]) -> Target:
    return max(targets, key=lambda t: t.step)
