"""The threads that take messages: one message of a run at a time, clients in turn.

A client is a token, or all tokens of one project. Turns are counted in the time that messages took,
so that few large ones weigh as much as many small ones, and no client holds every thread. What does
not fit is refused at once with the limit that it broke.
"""

from __future__ import annotations

from collections import Counter, deque
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
MAX_BYTES: Final = 64 * 2**20  # of all messages that wait
AHEAD_S: Final = 60.0  # an urgent message is due so long before it came
BYTES_PER_S: Final = 32_000  # by so much a large one is due later: a backlog, behind live runs
_WAIT: Final = "Wait, then send it again"
MOST_CLIENTS: Final = 2000  # of which it is remembered what they had, beside those that wait


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


@dataclass(slots=True)
class _Job:
    client: Hashable
    run: Hashable
    size: int  # bytes
    due: float  # monotonic seconds: of a client's runs the one whose message is due first is next
    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Client:
    """What one client has waiting."""

    spent_s: float  # of threads' time, on one scale for all
    queues: dict[Hashable, deque[_Job]] = field(default_factory=dict)  # by run, busy ones too
    ready: dict[Hashable, float] = field(default_factory=dict)  # runs to serve, by when it is due
    working: int = 0  # messages that are being taken

    def add(self, job: _Job) -> None:
        queue = self.queues.get(job.run)
        if queue is None:
            self.queues[job.run] = deque([job])
            self.ready[job.run] = job.due
        elif len(queue) < MAX_EACH:
            queue.append(job)
            if job.run in self.ready:
                self.ready[job.run] = min(self.ready[job.run], job.due)
        else:
            raise Busy(
                f"{MAX_EACH} messages of this run wait already",
                "Send one, wait for its answer, then send the next",
                limit=MAX_EACH,
            )

    def finish(self, job: _Job, took_s: float) -> None:
        self.working -= 1
        self.spent_s += took_s
        if left := self.queues[job.run]:
            due, now = min(each.due for each in left), monotonic()
            urgent = due <= now - AHEAD_S
            self.ready[job.run] = due if urgent else max(due, now)  # behind those that wait by now
        else:
            del self.queues[job.run]


class MessagePool:
    """One thread more than `workers`, of which one client has `workers` at most; `waiting` messages
    wait or are being taken, at most. Starts with the first message."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._workers, self._threads = workers, list[Thread]()
        self._messages = SharedQuota(waiting, "messages wait")
        self._bytes = SharedQuota(MAX_BYTES, "bytes of messages wait")
        self._clients: dict[Hashable, _Client] = {}
        self._served_s = 0.0  # what the client that was served last had spent
        self._change = Condition()
        self._stopping = False

    def take(
        self,
        client: Hashable,
        run: Hashable,
        size: int,
        work: Callable[[], Any],
        *,
        first: bool = False,
    ) -> Future[Any]:
        """Let `work` be done behind what waits of `run`; raise `Busy` where there is no room.

        `size`: bytes that are held until it is done; of a client's runs small messages go first.
        `first`: before all of those.
        """
        named = copy_context()  # the log says whose request it is
        due = monotonic() + (-AHEAD_S if first else size / BYTES_PER_S)
        job = _Job(client, run, size, due, partial(named.run, work))
        with self._change:
            self._messages.take(client)
            try:
                self._bytes.take(client, size)
            except Busy:
                self._messages.give_back(client)
                raise
            mine = self._clients.setdefault(client, _Client(self._served_s))
            mine.spent_s = max(mine.spent_s, self._served_s)  # nobody saves up turns
            try:
                mine.add(job)
            except Busy:
                self._free(job)
                raise
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

    def _free(self, job: _Job) -> None:
        self._messages.give_back(job.client)
        self._bytes.give_back(job.client, job.size)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began = monotonic()
            wanted = job.done.set_running_or_notify_cancel()
            tell = _done(job) if wanted else None
            with self._change:
                self._free(job)
                self._clients[job.client].finish(job, monotonic() - began)
                if len(self._clients) > MOST_CLIENTS:
                    self._clients = {name: c for name, c in self._clients.items() if c.queues}
                self._change.notify()
            if tell is not None:
                tell()  # now: who is answered may send the next at once, and finds room

    def _next(self) -> _Job | None:
        """The next message; None once there is nothing more to do."""
        with self._change:
            while (client := self._whose_turn()) is None:
                if self._stopping:
                    return None
                self._change.wait()
            self._served_s = max(self._served_s, client.spent_s)
            run = min(client.ready, key=client.ready.__getitem__)
            del client.ready[run]
            client.working += 1
            return client.queues[run].popleft()

    def _whose_turn(self) -> _Client | None:
        """Of the clients with a run that is ready, the one that has had least."""
        least: _Client | None = None
        for each in self._clients.values():
            free = each.ready and each.working < self._workers
            if free and (least is None or each.spent_s < least.spent_s):
                least = each
        return least


def _done(job: _Job) -> Callable[[], None]:
    """Do it; returns what tells the outcome."""
    try:
        result = job.work()
    except BaseException as error:
        return partial(job.done.set_exception, error)
    return partial(job.done.set_result, result)
