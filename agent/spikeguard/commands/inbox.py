"""What the server said last, for the loop to look at.

Law: the sender replaces whole values, the loop reads them: one reference each, no lock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from spikeguard.faults import log
from spikeguard_protocol import Ack, Order, UnreadableOrder

ATTENTIVE_S = 30.0  # a server not heard for so long asks for nothing: slow signals cost time


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
