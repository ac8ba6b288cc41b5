"""The threads that take messages: one message of a run at a time, clients in turn.

A client is a token, or all tokens of one project. Turns are counted in the time that messages took,
so that few large ones weigh as much as many small ones, and no client holds every thread. What does
not fit is refused at once with the limit that it broke.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Final

from spikeguard_server.errors import Busy

MAX_EACH: Final = 8  # messages of one run that wait; an agent sends one and waits for the answer
STOP_S: Final = 5.0
_WAIT: Final = "Wait, then send it again"


class SharedQuota:
    """Counts what of `most` is held, by client. Nobody holds more of it than is left to all others.
    Refusals name it by `what`, in the plural."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.held = 0  # by all clients
        self._of: Counter[Hashable] = Counter()  # those who hold any

    def take(self, client: Hashable, size: int = 1) -> None:
        """Raise `Busy` where there is no room, or where this client would hold too much of it."""
        free, mine = self._most - self.held, self._of[client]
        if size > free:
            raise Busy(f"{self._most} {self._what} already", _WAIT, limit=self._most)
        if mine + size > free:
            raise Busy(
                f"{mine} {self._what} already from here, and room for {free} is left to all others",
                _WAIT,
                limit=mine,
            )
        self.held += size
        self._of[client] += size

    def give_back(self, client: Hashable, size: int = 1) -> None:
        """So much of it is free again."""
        self.held -= size
        self._of[client] -= size
        if not self._of[client]:
            del self._of[client]


@dataclass(slots=True, eq=False)
class _Job:
    client: Hashable
    run: Hashable  # with its client
    first: bool
    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)


class MessagePool:
    """One thread more than `workers`, of which one client has `workers` at most; `waiting` messages
    wait or are being taken, at most."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._workers = workers
        self._threads = ThreadPoolExecutor(workers + 1, "ingest")
        self._messages = SharedQuota(waiting, "messages wait")
        self._waiting, self._taken = list[_Job](), list[_Job]()  # in the order in which they came
        self._spent_s: dict[Hashable, float] = {}  # threads' time of each client, on one scale
        self._served_s = 0.0  # what the client that was served last had spent
        self._lock = Lock()

    def take(
        self,
        client: Hashable,
        run: Hashable,
        work: Callable[[], Any],
        *,
        first: bool = False,
    ) -> Future[Any]:
        """Let `work` be done behind what waits of `run`; raise `Busy` where there is no room.
        `first`: before the client's other runs."""
        named = copy_context()  # the log says whose request it is
        job = _Job(client, (client, run), first, partial(named.run, work))
        with self._lock:
            if sum(each.run == job.run for each in self._waiting) >= MAX_EACH:
                raise Busy(f"{MAX_EACH} messages of this run wait already", _WAIT, limit=MAX_EACH)
            self._messages.take(client)
            # Nobody saves up turns.
            self._spent_s[client] = max(self._spent_s.get(client, 0.0), self._served_s)
            self._waiting.append(job)
        self._threads.submit(self._work)
        return job.done

    def stop(self) -> None:
        """Take nothing more, and wait up to `STOP_S` for what waits."""
        self._threads.shutdown(wait=False)
        with self._lock:
            left = [job.done for job in (*self._waiting, *self._taken)]
        wait(left, STOP_S)

    @property
    def length(self) -> int:
        """Messages that wait or are being taken."""
        return self._messages.held

    def _work(self) -> None:
        """Take what can be taken. What cannot yet, whoever is at its run takes behind it."""
        while (job := self._next()) is not None:
            began = monotonic()
            tell: Callable[[], None] | None = None
            if job.done.set_running_or_notify_cancel():
                try:
                    tell = partial(job.done.set_result, job.work())
                except BaseException as error:
                    tell = partial(job.done.set_exception, error)
            with self._lock:
                self._taken.remove(job)
                self._messages.give_back(job.client)
                self._spent_s[job.client] += monotonic() - began
            if tell is not None:
                tell()  # now: who is answered may send the next at once, and finds room

    def _next(self) -> _Job | None:
        """A message of a run that nobody is at, of the client that has had least; of its runs one
        with an urgent message, if any."""
        with self._lock:
            busy, having = {job.run for job in self._taken}, Counter(j.client for j in self._taken)
            free = [
                job
                for job in self._waiting
                if job.run not in busy and having[job.client] < self._workers
            ]
            urgent = {job.run for job in free if job.first}
            if not free:
                return None
            job = min(free, key=lambda one: (self._spent_s[one.client], one.run not in urgent))
            self._served_s = max(self._served_s, self._spent_s[job.client])
            self._waiting.remove(job)
            self._taken.append(job)
            return job
