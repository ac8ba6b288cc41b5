"""A bounded, fair queue of messages: clients in turn, and the runs of a client in turn.

Law: whoever floods waits behind its own messages, never in front of others'; who hurries comes
before other runs of the same client, and before nobody else. Turns are counted in the time that
messages take, so that few large ones weigh as much as many small ones. What does not fit is refused
at once with the limit that it broke, and one client alone can't fill the line; nothing here grows
without a bound, and no thread waits for a lock that another thread of this process holds for the
same run. `ServiceOrder` says whose turn it is, `UrgentRuns` which of a client's messages comes
first.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final

from spikeguard_server.errors import Busy

_MOST_KEYS = 2000  # keys remembered: those that spent most


@dataclass(slots=True)
class ServiceOrder:
    """Keys that are ready, in the order of the seconds of work that each has had: least first.

    Start-time fair queueing (Goyal, Vin, Cheng 1996) with measured costs, O(log n) a turn. Who was
    away begins where the others stand now: nobody saves up turns, and nobody pays for what was
    spent before everyone came to rest.
    """

    _spent: dict[Hashable, float] = field(default_factory=dict)  # seconds, on one common scale
    _entries: dict[Hashable, int] = field(default_factory=dict)  # of whom is ready: its ticket
    _heap: list[tuple[float, int, Hashable]] = field(default_factory=list)
    _tickets: count[int] = field(default_factory=count)
    _present: float = 0.0  # what the one that was served last had spent

    def __len__(self) -> int:
        """Keys that are ready."""
        return len(self._entries)

    def enter(self, key: Hashable) -> None:
        """`key` has something to do and nobody does it; nothing happens if it is ready already."""
        if key not in self._entries:
            self._push(key)

    def hurry(self, key: Hashable) -> None:
        """`key` is next, if it is ready; what it spends is counted as ever."""
        if key in self._entries:
            ticket = self._entries[key] = next(self._tickets)
            heapq.heappush(self._heap, (-math.inf, ticket, key))

    def next(self) -> Hashable:
        """The ready key that has spent least, of equals the one that waits longest; it is no
        longer ready. Raise `IndexError` where none is."""
        while True:
            spent, ticket, key = heapq.heappop(self._heap)
            if self._entries.get(key) == ticket:
                del self._entries[key]
                self._present = max(self._present, spent)
                return key

    def charge(self, key: Hashable, seconds: float) -> None:
        """Count work for `key`; less than nothing where too much was counted before."""
        self._spent[key] = self.spent(key) + seconds
        if key in self._entries:
            self._push(key)
        if len(self._spent) > 2 * _MOST_KEYS:
            self._forget()

    def spent(self, key: Hashable) -> float:
        """Seconds that `key` has had, on the scale on which whoever has least is next."""
        return max(self._present, self._spent.get(key, self._present))

    def _push(self, key: Hashable) -> None:
        ticket = self._entries[key] = next(self._tickets)
        heapq.heappush(self._heap, (self.spent(key), ticket, key))

    def _forget(self) -> None:
        """Keep who is furthest ahead of the present; the rest begins there, or nearly."""
        furthest = heapq.nlargest(_MOST_KEYS, self._spent.items(), key=lambda entry: entry[1])
        self._spent = {key: spent for key, spent in furthest if spent > self._present}


MAX_EACH: Final = 8  # messages of one run that wait; an agent sends one and waits for the answer
MAX_BYTES: Final = 64 * 2**20  # of all messages that wait
SPARED: Final = 3  # from so many threads on no client has all of them
SMOOTHING: Final = 0.1  # weight of the newest message in what one usually takes
WAIT: Final = "Wait, then send it again"


@dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    size: int  # bytes
    done: Future[Any]


@dataclass(slots=True)
class _Client:
    """What one client has waiting, by run."""

    team: Hashable
    lines: dict[Hashable, deque[_Job]] = field(default_factory=dict)
    order: ServiceOrder = field(default_factory=ServiceOrder)  # of lines that nobody works on
    count: int = 0  # messages that wait or are being taken
    working: int = 0  # of them, those that are being taken
    bytes: int = 0

    def add(self, line: Hashable, job: _Job) -> None:
        self.count, self.bytes = self.count + 1, self.bytes + job.size
        queue = self.lines.get(line)
        if queue is None:  # nobody waits there, nobody is served
            self.lines[line] = deque([job])
            self.order.enter(line)
        else:
            queue.append(job)

    def finish(self, line: Hashable, job: _Job) -> None:
        """`job` of `line` is done; whoever waits there is ready."""
        self.count, self.bytes = self.count - 1, self.bytes - job.size
        if self.lines[line]:
            self.order.enter(line)
        else:
            del self.lines[line]


@dataclass(slots=True)
class _Team:
    """The clients of one project."""

    working: int = 0  # messages that are being taken
    parked: dict[Hashable, None] = field(default_factory=dict)  # clients that wait for a thread


@dataclass(frozen=True, slots=True)
class _Turn:
    client: Hashable
    line: Hashable
    job: _Job
    charged_s: float  # in advance


@dataclass
class FairQueue:
    """A fixed number of threads that take messages in turn. Starts with the first message.

    There is one more than `workers`, and no team has more than these: what a team's messages say
    may take each of them seconds to judge.
    """

    workers: int  # of one team at most
    waiting: int  # messages at most, of all clients
    _clients: dict[Hashable, _Client] = field(default_factory=dict)
    _teams: defaultdict[Hashable, _Team] = field(default_factory=lambda: defaultdict(_Team))
    _order: ServiceOrder = field(
        default_factory=ServiceOrder
    )  # of clients with a line that is ready
    _change: Condition = field(default_factory=Condition)
    _count: int = 0
    _bytes: int = 0
    _usual_s: float = 0.0
    _threads: list[Thread] = field(default_factory=list)
    _stopping: bool = False

    def take(
        self,
        client: Hashable,
        line: Hashable,
        size: int,
        work: Callable[[], Any],
        team: Hashable = None,
    ) -> Future[Any]:
        """Let `work` be done behind what waits in `line`, a run's, of `client`, a token's; raise
        `Busy` where there is no room.

        `size`: bytes that are held until it is done. `team`: the client's project, always the same.
        """
        job = _Job(partial(copy_context().run, work), size, Future())  # whose request it is
        with self._change:
            self._check(client, line, size)
            self._count, self._bytes = self._count + 1, self._bytes + size
            mine = self._clients.setdefault(client, _Client(team))
            mine.add(line, job)
            self._enter(client, mine)
            self._start()
        return job.done

    def hurry(self, client: Hashable, line: Hashable) -> None:
        """What waits in `line` comes before the other lines of `client`, if it still waits."""
        with self._change:
            if (mine := self._clients.get(client)) is not None:
                mine.order.hurry(line)

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

    def _check(self, client: Hashable, line: Hashable, size: int) -> None:
        mine = self._clients.get(client) or _Client(None)
        free, free_bytes = self.waiting - self._count, MAX_BYTES - self._bytes
        if len(mine.lines.get(line, ())) >= MAX_EACH:
            raise Busy(
                f"{MAX_EACH} messages of this run wait already",
                "Send one, wait for its answer, then send the next",
                limit=MAX_EACH,
            )
        if free <= 0:
            raise Busy(f"{self.waiting} messages wait already", WAIT, limit=self.waiting)
        if mine.count >= free:
            raise Busy(
                f"{mine.count} messages of this token wait already, and room for {free} is left "
                "to all others",
                "Send from fewer runs at once, or wait, then send it again",
                limit=mine.count,
            )
        if size > free_bytes and self._count:
            raise Busy(f"{MAX_BYTES} bytes of messages wait already", WAIT, limit=MAX_BYTES)
        if mine.bytes + size > free_bytes and mine.count:
            raise Busy(
                f"{mine.bytes} bytes of messages of this token wait already", WAIT,
                limit=mine.bytes,
            )  # fmt: skip

    def _enter(self, client: Hashable, mine: _Client) -> None:
        """One thread is left to all others: what a message says may take seconds to judge."""
        most = self.workers if self.workers < SPARED else self.workers - 1
        if mine.order and mine.working < most:
            self._order.enter(client)
            self._change.notify()

    def _start(self) -> None:
        while len(self._threads) <= self.workers:
            thread = Thread(target=self._work, name=f"ingest-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            began = monotonic()
            wanted = turn.job.done.set_running_or_notify_cancel()
            answer = _do(turn.job) if wanted else None
            self._give_back(turn, monotonic() - began)
            if answer is not None:
                answer()  # now: who is answered may send the next at once, and finds room

    def _next(self) -> _Turn | None:
        """The next run's oldest message; None once there is nothing more to do."""
        with self._change:
            while (client := self._ready()) is None:
                if self._stopping:
                    return None
                self._change.wait()
            mine, usual_s = self._clients[client], self._usual_s
            team = self._teams[mine.team]
            team.working += 1
            team.parked.pop(client, None)  # where more of it came meanwhile
            line = mine.order.next()
            mine.order.charge(line, usual_s)
            self._order.charge(client, usual_s)
            mine.working += 1
            self._enter(client, mine)
            return _Turn(client, line, mine.lines[line].popleft(), usual_s)

    def _ready(self) -> Hashable:
        """The client whose turn it is; None where none is ready, or none whose team has a thread
        left."""
        while self._order:
            client = self._order.next()
            team = self._teams[self._clients[client].team]
            if team.working < self.workers:
                return client
            team.parked[client] = None
        return None

    def _leave(self, name: Hashable) -> None:
        """A thread of the team `name` is free: of who is parked there the one that has had least
        is ready again."""
        team = self._teams[name]
        team.working -= 1
        if team.parked:
            client = min(team.parked, key=self._order.spent)
            del team.parked[client]
            self._enter(client, self._clients[client])
        elif not team.working:
            del self._teams[name]

    def _give_back(self, turn: _Turn, took_s: float) -> None:
        """Count what it really took, and let the next of its run be ready."""
        with self._change:
            self._usual_s += SMOOTHING * (took_s - self._usual_s)
            self._count, self._bytes = self._count - 1, self._bytes - turn.job.size
            mine, more_s = self._clients[turn.client], took_s - turn.charged_s
            mine.order.charge(turn.line, more_s)
            self._order.charge(turn.client, more_s)
            mine.finish(turn.line, turn.job)
            mine.working -= 1
            self._enter(turn.client, mine)
            self._leave(mine.team)
            if not mine.count:
                del self._clients[turn.client]
            if not self._count:
                self._order = ServiceOrder()  # everyone came to rest


def _do(job: _Job) -> Callable[[], None]:
    """Do it; returns what tells the outcome."""
    try:
        result = job.work()
    except BaseException as error:
        return partial(job.done.set_exception, error)
    return partial(job.done.set_result, result)


WINDOW: Final = 16  # newest losses of a run, one a message
BEYOND: Final = 0.5  # of their range above the highest: 1 of 5,000 calm ones, if they are normal
REST_S: Final = 5.0
MOST_RUNS: Final = 4000  # those that sent last


@dataclass(slots=True)
class _Run:
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    rests_until: float = -math.inf


class UrgentRuns:
    """What the newest messages of each run looked like. Used by one thread.

    It orders what waits and decides nothing; what it misses waits its turn. Only what was taken is
    looked at, and under its own token: nobody else can spoil the look. A run is urgent once in
    `REST_S`, however it looks: one that has diverged holds up nobody.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run] = {}

    def of(self, line: Hashable, loss: float | None, now: float) -> bool:
        """Whether a message of the run `line`, whose newest loss this is, is to be taken before
        others, at `now` (seconds of a clock that does not go back)."""
        if loss is None:
            return False
        run = self._runs.pop(line, None) or _Run()
        self._runs[line] = run
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        out = loss_stands_out(loss, run.losses)
        if math.isfinite(loss):
            run.losses.append(loss)
        if not out or now < run.rests_until:
            return False
        run.rests_until = now + REST_S
        return True


def loss_stands_out(loss: float, before: deque[float]) -> bool:
    """Whether it is not finite, or far above all of a full window."""
    if not math.isfinite(loss):
        return True
    if len(before) < WINDOW:
        return False
    highest = max(before)
    return loss > highest + BEYOND * (highest - min(before))
