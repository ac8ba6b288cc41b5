"""The baton: of the threads that take messages, whoever holds it computes, the others wait for it.

Law: a courtesy, never a condition. It is laid down before every wait for the database, and who does
not get it within `PATIENCE_S` goes on without it; so it can delay a thread, and never stop one.

Why: the interpreter runs one thread at a time anyway, but numpy's sorts and libpq's calls hand it
on, some hundred times a message; where several threads compute, each of those hands it to another
thread by way of the kernel.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Any, Final, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

PATIENCE_S: Final = 0.05  # several times what a message of 200 samples takes
Result = TypeVar("Result")
Talk = Generator[Wait, Ready | int, Result]  # with the database; it yields where it has to wait

_baton = Lock()


class _Part(local):
    """What this thread has to do with the baton."""

    taken: bool = False  # it computes in turn with the others
    holds: bool = False


_part = _Part()


@contextmanager
def in_turn() -> Iterator[None]:
    """Compute in turn with the other threads that do: from the database's first answer on."""
    before, _part.taken = _part.taken, True
    try:
        yield
    finally:
        _part.taken = before
        _lay_down()


class Connection(psycopg.Connection[Any]):
    """A connection whose waits leave the baton to others."""

    def wait(self, gen: Talk[Result], *limits: Any, **named: Any) -> Result:
        """Carry `gen` out, as psycopg does; the limits are its own."""
        return super().wait(_aside(gen) if _part.taken else gen, *limits, **named)


def _aside(talk: Talk[Result]) -> Talk[Result]:
    """The same talk, with the baton laid down while it waits."""
    try:
        want = next(talk)
        while True:
            _lay_down()
            ready = yield want
            _take_up()
            want = talk.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _take_up() -> None:
    _part.holds = _baton.acquire(timeout=PATIENCE_S)


def _lay_down() -> None:
    if _part.holds:
        _part.holds = False
        _baton.release()
