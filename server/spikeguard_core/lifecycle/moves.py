"""Shared by all tables of moves: the refusal of an illegal one, and the diagram for the docs.

Law: a table of moves is a plain mapping (state, event) -> state; nothing else decides a move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalMove(ValueError):
    """A move that the table does not know. The state stays what it was."""

    def __init__(self, what: str, state: StrEnum, event: StrEnum, legal: Iterable[StrEnum]) -> None:
        words = ", ".join(legal) or "nothing: this state is final"
        super().__init__(f"a {what} that is {state} does not take {event}; it takes {words}")
        self.state = state
        self.event = event


def mermaid(moves: Mapping[tuple[S, E], S], first: S) -> str:
    """The state diagram of a table, in Mermaid's language, beginning at `first`."""
    edges: dict[tuple[S, S], list[str]] = {}
    for (start, event), end in moves.items():
        edges.setdefault((start, end), []).append(event.value)
    leaving = {start for start, _ in edges}
    final = sorted({end for _, end in edges} - leaving)
    return "\n".join(
        [
            "stateDiagram-v2",
            f"    [*] --> {first}",
            *(f"    {a} --> {b}: {', '.join(words)}" for (a, b), words in edges.items()),
            *(f"    {state} --> [*]" for state in final),
        ]
    )
