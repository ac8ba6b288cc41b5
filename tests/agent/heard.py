"""The one place where tests put into a guard what no server has said and no earlier start has left.

What it does then is looked at from outside, by `guard.state()`. `guard`: one, or what wraps one.
"""

from __future__ import annotations

from typing import Any

from spikeguard_protocol import Ack, BatchRange


def hear(guard: Any, ack: Ack, asked_at: float | None = None) -> None:
    """As if the server had answered `ack`; `asked_at`: to a message of then, monotonic seconds."""
    guard._p.inbox.hear(ack, asked_at)


def leave_out(guard: Any, skip: BatchRange, command: str | None = None) -> None:
    """As if an earlier `command` had skipped these batches."""
    guard._p.journal.ledger.add(skip, command)
