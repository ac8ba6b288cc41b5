"""What an order changes beyond its own step, for the journal: the rate, the mitigations."""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard.commands.entries import Applying, Scaling
from spikeguard.commands.journal import Journal
from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.lineage import Abandonment
from spikeguard.state.progress import Progress
from spikeguard.state.targets import Target, Tree
from spikeguard_protocol import Apply, Order, Rollback, ScaleLr


@dataclass(frozen=True, slots=True)
class Prepared:
    """A verified rollback: nothing but the commit is left to do."""

    target: Target
    tree: Tree
    abandoned: tuple[Abandonment, ...]


def scaling_of(
    order: Order, prepared: Prepared | None, progress: Progress, journal: Journal
) -> Scaling | None:
    """What the learning rate will be scaled by once `order` is carried out."""
    action = order.action
    if isinstance(action, ScaleLr):
        lowered = LrScale(action.factor, progress.steps, action.steps)
        return Scaling(order.command, progress.lineage, lowered, asked=True)
    if not isinstance(action, Rollback) or prepared is None:
        return None
    target, saved = prepared.target, prepared.tree["lr_scale"]
    if action.lr_factor is not None and action.lr_steps is not None:
        lowered = LrScale(action.lr_factor, target.step, action.lr_steps, action.lr_cap)
        return Scaling(order.command, target.lineage, lowered, asked=True)
    scale = journal.accepted(LrScale.read(saved) if saved is not None else None)
    return Scaling(order.command, target.lineage, scale, asked=False)


def applying_of(order: Order, prepared: Prepared | None, progress: Progress) -> Applying | None:
    """The steps that will be made with a mitigation once `order` is carried out."""
    action, lineage = order.action, progress.lineage
    name: str | None = None
    steps: int | None = None
    if isinstance(action, Rollback) and prepared is not None:
        lineage = prepared.target.lineage
        name, steps = action.apply, action.apply_steps
    elif isinstance(action, Apply):
        name, steps = action.name, action.steps
    if name is None or steps is None:
        return None
    return Applying(order.command, lineage, name, lineage[-1].step, steps)
