"""The compute lock: of the threads that take messages, one computes at a time.

Invariants: a courtesy, never a condition. It is released before every wait for the database, and
who does not get it within `PATIENCE_S` goes on without it; so it can delay a thread, and never stop
one.

Why: the interpreter runs one thread at a time anyway, but numpy's sorts and libpq's calls hand it
on, some hundred times a message; where several threads compute, each of those hands it to another
thread by way of the kernel.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Final, TypeVar

from psycopg.waiting import Ready, Wait

PATIENCE_S: Final = 0.05  # several times what a message of 200 samples takes
Result = TypeVar("Result")
Talk = Generator[Wait, Ready | int, Result]  # with the database; it yields where it has to wait

_lock = Lock()


class _Thread(local):
    in_turn: bool = False  # it computes in turn with the others
    holds: bool = False


_thread = _Thread()


@contextmanager
def in_turn() -> Iterator[None]:
    """Compute in turn with the other threads that do: from the database's first answer on."""
    before, _thread.in_turn = _thread.in_turn, True
    try:
        yield
    finally:
        _thread.in_turn = before
        release()


def released_while_waiting(talk: Talk[Result]) -> Talk[Result]:
    """The same talk, with the lock released while it waits."""
    if not _thread.in_turn:
        return (yield from talk)
    try:
        want = next(talk)
        while True:
            release()
            ready = yield want
            take()
            want = talk.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def take() -> None:
    """Wait for the turn, where this thread takes part."""
    if _thread.in_turn and not _thread.holds:
        _thread.holds = _lock.acquire(timeout=PATIENCE_S)


def release() -> None:
    """Let others compute."""
    if _thread.holds:
        _thread.holds = False
        _lock.release()
