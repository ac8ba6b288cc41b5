"""Shared by all tables of moves: the refusal of an illegal one.

Law: a table of moves is a plain mapping (state, event) -> state; nothing else decides a move.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class IllegalMove(ValueError):
    """A move that the table does not know. The state stays what it was."""

    def __init__(self, what: str, state: StrEnum, event: StrEnum, legal: Iterable[StrEnum]) -> None:
        words = ", ".join(legal) or "nothing: this state is final"
        super().__init__(f"a {what} that is {state} does not take {event}; it takes {words}")
        self.state = state
        self.event = event
