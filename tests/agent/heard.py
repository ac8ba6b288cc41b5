"""The one place where tests put into a guard what no server has said and no earlier start has left.

What it does then is looked at from outside, by `guard.state()`. `guard`: one, or what wraps one.
"""

from __future__ import annotations

from typing import Any

from spikeguard_protocol import Ack


def parts_of(guard: Any) -> Any:
    """What only a test of a failure within touches: it breaks a part, or looks at one it broke."""
    return guard._p


def hear(guard: Any, ack: Ack, asked_at: float | None = None) -> None:
    """As if the server had answered `ack`; `asked_at`: to a message of then, monotonic seconds."""
    parts_of(guard).inbox.hear(ack, asked_at)
