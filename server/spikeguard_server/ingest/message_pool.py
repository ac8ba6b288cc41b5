"""The threads that take messages: one message of a run at a time, clients in turn.

A client is a token, or all tokens of one project. Turns are counted in the time that messages took,
so that few large ones weigh as much as many small ones, and no client holds every thread. What does
not fit is refused at once with the limit that it broke.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final

from spikeguard_server.errors import Busy

MAX_EACH: Final = 8  # messages of one run that wait; an agent sends one and waits for the answer
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
    run: Hashable
    urgent: bool
    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Client:
    """What one client has waiting."""

    spent_s: float  # of threads' time, on one scale for all
    waiting: list[_Job] = field(default_factory=list)  # in the order in which they came
    busy: set[Hashable] = field(default_factory=set)  # runs of which a message is being taken

    def next(self) -> _Job | None:
        """The first message of a run that nobody is at, of one with an urgent message if any."""
        free = [job for job in self.waiting if job.run not in self.busy]
        urgent = next((job.run for job in free if job.urgent), None)
        return next((job for job in free if urgent in (None, job.run)), None)


class MessagePool:
    """One thread more than `workers`, of which one client has `workers` at most; `waiting` messages
    wait or are being taken, at most. Starts with the first message."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._workers, self._threads = workers, list[Thread]()
        self._messages = SharedQuota(waiting, "messages wait")
        self._clients: dict[Hashable, _Client] = {}
        self._served_s = 0.0  # what the client that was served last had spent
        self._change = Condition()
        self._stopping = False

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
        job = _Job(client, run, first, partial(named.run, work))
        with self._change:
            mine = self._clients.get(client) or _Client(self._served_s)
            if sum(each.run == run for each in mine.waiting) >= MAX_EACH:
                raise Busy(f"{MAX_EACH} messages of this run wait already", _WAIT, limit=MAX_EACH)
            self._messages.take(client)
            self._clients[client] = mine
            mine.spent_s = max(mine.spent_s, self._served_s)  # nobody saves up turns
            mine.waiting.append(job)
            while len(self._threads) <= self._workers:
                thread = Thread(target=self._work, name=f"ingest-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._change.notify()
        return job.done

    def stop(self, within_s: float) -> None:
        """Let the threads end once nothing waits."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(within_s)

    @property
    def length(self) -> int:
        """Messages that wait or are being taken."""
        return self._messages.held

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began = monotonic()
            wanted = job.done.set_running_or_notify_cancel()
            tell = _done(job) if wanted else None
            with self._change:
                self._messages.give_back(job.client)
                mine = self._clients[job.client]
                mine.busy.remove(job.run)
                mine.spent_s += monotonic() - began
                if not mine.busy and not mine.waiting:
                    del self._clients[job.client]
                self._change.notify()
            if tell is not None:
                tell()  # now: who is answered may send the next at once, and finds room

    def _next(self) -> _Job | None:
        """The next message; None once there is nothing more to do."""
        with self._change:
            while (job := self._first()) is None:
                if self._stopping:
                    return None
                self._change.wait()
            mine = self._clients[job.client]
            self._served_s = max(self._served_s, mine.spent_s)
            mine.waiting.remove(job)
            mine.busy.add(job.run)
            return job

    def _first(self) -> _Job | None:
        """What can be taken now of the client that has had least."""
        free = [client for client in self._clients.values() if len(client.busy) < self._workers]
        jobs = (client.next() for client in sorted(free, key=lambda client: client.spent_s))
        return next(filter(None, jobs), None)


def _done(job: _Job) -> Callable[[], None]:
    """Do it; returns what tells the outcome."""
    try:
        result = job.work()
    except BaseException as error:
        return partial(job.done.set_exception, error)
    return partial(job.done.set_result, result)
