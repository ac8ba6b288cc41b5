"""A cache of one result: at most a moment old, computed by one thread at a time.

Law: the look has a thread of its own, so that it waits for no other call and no other call for it.
What it raises is kept like what it returns.
"""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


class Looks(Generic[T]):
    """Shares one look among all who ask within `seconds` of its beginning, or until it ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, Lock()
        self._newest: Future[T] | None = None
        self._began = 0.0

    async def get(self, look: Callable[[], T]) -> T:
        """What `look` says, or said a moment ago; raise what it raised."""
        return await wrap_future(self._share(look))

    def _share(self, look: Callable[[], T]) -> Future[T]:
        with self._lock:
            newest, age_s = self._newest, monotonic() - self._began
            if newest is None or (newest.done() and age_s >= self._seconds):
                newest, began = Future(), monotonic()
                newest.set_running_or_notify_cancel()  # who hangs up takes it from nobody else
                Thread(target=_look, args=(newest, look), name="look", daemon=True).start()
                self._newest, self._began = newest, began  # where no thread was had, the next tries
            return newest


def _look(said: Future[T], look: Callable[[], T]) -> None:
    try:
        found = look()
    except BaseException as error:
        said.set_exception(error)
    else:
        said.set_result(found)
