"""Orders on the job's side: where they wait, and which of them its own settings allow.

The sender replaces whole values, the loop reads them: one reference each, no lock. Whoever can
answer the agent (a compromised server, or anyone between the two on plain http) can order anything
that the protocol has a word for. The limits are the job's own: no message changes them. They are
pure functions: settings and numbers in, the reason for a refusal out, None where an order is
allowed; a reason names what was ordered, the limit and its setting. NaN fails every comparison.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spikeguard.faults import log
from spikeguard.settings import Settings
from spikeguard_protocol import (
    Ack,
    Action,
    Apply,
    BatchRange,
    Order,
    Rollback,
    ScaleLr,
    SkipBatches,
    UnreadableOrder,
    Verb,
)

ATTENTIVE_S = 30.0  # a server not heard for so long asks for nothing: slow signals cost time


class Refusal(Exception):
    """Why an order is not carried out."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An order and when the message went out that it answers, by the monotonic clock.

    No answer is older than that, so one that was long on its way does not outlive its time.
    """

    order: Order
    asked_at: float

    def expired(self, now: float) -> bool:
        """Whether its time has passed."""
        return not now - self.asked_at <= self.order.expires_in_s  # NaN is over


@dataclass(slots=True)
class Inbox:
    """Written by the sender's thread, read by the loop."""

    deliveries: tuple[Delivery, ...] = ()
    own: tuple[Delivery, ...] = ()  # the job's own rule's; the loop writes these
    unreadable: tuple[UnreadableOrder, ...] = ()  # to be refused by their names
    asked_attentive: bool = False
    protected: frozenset[str] = frozenset()
    heard_at: float | None = None
    alone: bool = True  # whether no other attempt of the run is alive
    changed: bool = False  # the loop has something to look at; it takes this back, nobody else

    @property
    def orders(self) -> tuple[Delivery, ...]:
        """What waits to be carried out, the job's own first."""
        return (*self.own, *self.deliveries)

    @property
    def attentive(self) -> bool:
        """Whether the server wants the slow signals at every step, and said so lately."""
        if not self.asked_attentive or self.heard_at is None:
            return False
        return time.monotonic() - self.heard_at < ATTENTIVE_S

    def hear(
        self,
        ack: Ack,
        asked_at: float | None = None,
        unreadable: tuple[UnreadableOrder, ...] = (),
    ) -> None:
        """Take over an acknowledgement; an order that is repeated keeps its first deadline.

        `asked_at`: when the message went out that it answers, monotonic; by default now.
        """
        now = time.monotonic()
        asked_at = now if asked_at is None else asked_at
        known = {(d.order.command, d.order.action): d for d in self.deliveries}
        fresh = [
            known.get((order.command, order.action)) or Delivery(order, asked_at)
            for order in ack.orders
        ]
        before = self.deliveries, self.asked_attentive, self.protected, self.unreadable
        self.deliveries, self.unreadable = tuple(fresh), unreadable
        self.asked_attentive = ack.attentive
        self.protected = frozenset(ack.protected)
        self.heard_at = now
        if ack.attentive or (self.deliveries, ack.attentive, self.protected, unreadable) != before:
            self.changed = True
        if self.alone and ack.live_attempts > 1:
            log.warning(
                "%d attempts of this run are alive: none gets orders until one has ended",
                ack.live_attempts,
            )
        self.alone = ack.live_attempts <= 1


# ---- the job's own limits ------------------------------------------------------------------------


DAY_S = 86_400.0
TOLD = (
    "observe_only",
    "allowed_verbs",
    "lr_factor_least",
    "lr_steps_most",
    "apply_steps_most",
    "skip_batches_most",
    "rollback_steps_most",
    "rollbacks_a_day",
    "orders_a_day",
)  # settings that travel to the server, which then proposes nothing beyond them
EMERGENCY = ("emergency_drops", "emergency_factor", "emergency_steps")  # where the rule is on


def limits_told(settings: Settings) -> dict[str, str]:
    """The limits as text, for the attempt's own description."""
    names = (*TOLD, *EMERGENCY) if settings.emergency_drops else TOLD
    values = {name: getattr(settings, name) for name in names}
    return {n: ",".join(v) if isinstance(v, tuple) else str(v) for n, v in values.items()}


class Asked(NamedTuple):
    """What an action changes, whatever its verb."""

    skip: BatchRange | None = None
    lr_factor: float | None = None
    lr_steps: int = 0
    lr_cap: float | None = None
    apply: str | None = None
    apply_steps: int = 0


def asked_by(action: Action) -> Asked:
    """Of a rollback, what comes with it."""
    match action:
        case SkipBatches(batches=skip):
            return Asked(skip)
        case ScaleLr(factor=factor, steps=steps):
            return Asked(lr_factor=factor, lr_steps=steps)
        case Apply(name=name, steps=steps):
            return Asked(apply=name, apply_steps=steps)
        case Rollback():
            return Asked(
                action.skip,
                action.lr_factor,
                action.lr_steps or 0,
                action.lr_cap,
                action.apply,
                action.apply_steps or 0,
            )
    return Asked()


def refusal(settings: Settings, action: Action, steps_back: int) -> str | None:
    """Why what `action` asks for lies beyond a limit; `steps_back`: what a rollback gives up."""
    asked = asked_by(action)
    skipped = len(asked.skip) if asked.skip is not None else 0
    if skipped > settings.skip_batches_most:
        return (
            f"it leaves out {skipped} batches {asked.skip}; this job leaves out at most "
            f"{settings.skip_batches_most} by one order (Settings.skip_batches_most)"
        )
    if asked.lr_factor is not None:
        if not settings.lr_factor_least <= asked.lr_factor <= 1.0:
            return (
                f"it multiplies the learning rate by {asked.lr_factor:g}; this job takes factors "
                f"from {settings.lr_factor_least:g} (Settings.lr_factor_least) to 1"
            )
        if not 1 <= asked.lr_steps <= settings.lr_steps_most:
            return (
                f"it scales the learning rate for {asked.lr_steps} steps; this job takes at most "
                f"{settings.lr_steps_most} (Settings.lr_steps_most)"
            )
    if asked.apply_steps > settings.apply_steps_most:
        return (
            f"it applies {asked.apply} for {asked.apply_steps} steps; this job takes at most "
            f"{settings.apply_steps_most} (Settings.apply_steps_most)"
        )
    if steps_back > settings.rollback_steps_most:
        return (
            f"it gives up {steps_back} steps; this job gives up at most "
            f"{settings.rollback_steps_most} in a rollback (Settings.rollback_steps_most)"
        )
    return verb_refusal(settings, Verb.APPLY) if asked.apply is not None else None


def verb_refusal(settings: Settings, verb: Verb) -> str | None:
    """Why orders of this verb are not carried out."""
    if settings.observe_only:
        return "this job only observes (Settings.observe_only, SPIKEGUARD_OBSERVE_ONLY)"
    if verb in settings.allowed_verbs:
        return None
    allowed = ", ".join(settings.allowed_verbs) or "nothing"
    return f"this job does not take {verb} (Settings.allowed_verbs: {allowed})"


def count_refusal(
    settings: Settings, verb: Verb, carried_out: Sequence[tuple[Verb, float]], now: float
) -> str | None:
    """Why no more of `verb` today; `carried_out`: verbs and when, by the clock of `now`."""
    if verb is Verb.WATCH:
        return None
    name = "rollbacks_a_day" if verb is Verb.ROLLBACK else "orders_a_day"
    most: int = getattr(settings, name)
    lately = sum(each is verb and abs(now - at) < DAY_S for each, at in carried_out)
    if lately < most:
        return None
    return (
        f"{lately} orders to {verb} were carried out in 24 hours; this job takes at most {most} "
        f"(Settings.{name})"
    )
