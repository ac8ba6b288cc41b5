"""Who is served next: a bounded line of messages, one at a time a run, runs in turn.

Law: whoever floods waits behind its own messages, never in front of others'. What does not fit is
refused at once with the limit that it broke; nothing here grows without a bound, and no thread
waits for a lock that another thread of this process holds for the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Final

from spikeguard_server.errors import Busy

MAX_EACH: Final = 8  # messages of one run that wait; an agent sends one and waits for the answer
MAX_BYTES: Final = 64 * 2**20  # of all messages that wait


@dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    size: int  # bytes
    done: Future[Any]


@dataclass
class Turns:
    """A fixed number of threads that take messages in turn. Starts with the first message."""

    workers: int
    waiting: int  # messages at most, of all runs
    _lines: dict[Hashable, deque[_Job]] = field(default_factory=dict)
    _ready: deque[Hashable] = field(default_factory=deque)  # lines that nobody works on
    _change: Condition = field(default_factory=Condition)
    _count: int = 0
    _bytes: int = 0
    _threads: list[Thread] = field(default_factory=list)
    _stopping: bool = False

    def take(self, line: Hashable, size: int, work: Callable[[], Any]) -> Future[Any]:
        """Let `work` be done behind what waits in `line`; raise `Busy` where there is no room.

        `size`: bytes that are held until it is done.
        """
        job = _Job(work, size, Future())
        with self._change:
            self._check(line, size)
            self._count, self._bytes = self._count + 1, self._bytes + size
            queue = self._lines.get(line)
            if queue is None:  # nobody waits there, nobody is served
                self._lines[line] = deque([job])
                self._ready.append(line)
                self._change.notify()
            else:
                queue.append(job)
            self._start()
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
        return self._count

    def _check(self, line: Hashable, size: int) -> None:
        if len(self._lines.get(line, ())) >= MAX_EACH:
            raise Busy(
                f"{MAX_EACH} messages of this run wait already",
                "Send one, wait for its answer, then send the next",
                limit=MAX_EACH,
            )
        if self._count >= self.waiting:
            raise Busy(
                f"{self.waiting} messages wait already", "Wait, then send it again",
                limit=self.waiting,
            )  # fmt: skip
        if self._bytes + size > MAX_BYTES and self._count:
            raise Busy(
                f"{MAX_BYTES} bytes of messages wait already", "Wait, then send it again",
                limit=MAX_BYTES,
            )  # fmt: skip

    def _start(self) -> None:
        while len(self._threads) < self.workers:
            thread = Thread(target=self._work, name=f"ingest-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            line, job = taken
            if job.done.set_running_or_notify_cancel():
                _do(job)
            self._give_back(line, job)

    def _next(self) -> tuple[Hashable, _Job] | None:
        """The next line's oldest; None once there is nothing more to do."""
        with self._change:
            while not self._ready:
                if self._stopping:
                    return None
                self._change.wait()
            line = self._ready.popleft()
            return line, self._lines[line].popleft()

    def _give_back(self, line: Hashable, job: _Job) -> None:
        with self._change:
            self._count, self._bytes = self._count - 1, self._bytes - job.size
            if self._lines[line]:
                self._ready.append(line)
                self._change.notify()
            else:
                del self._lines[line]


def _do(job: _Job) -> None:
    try:
        result = job.work()
    except BaseException as error:
        job.done.set_exception(error)
    else:
        job.done.set_result(result)
