"""What a policy would have said of a run's stored history, undone branches included.

Invariants: pure, and nothing is done. A branch that a rollback left begins for the monitor where it
left the one before, with no incident open, as the server takes it back. Whoever asks may stop
between two rows: what was found by then stands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.events import Event
from spikeguard_server.domain.monitor.monitor import Monitor
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.replay.advice import Advice, Assumed, SampleFeed, Watcher, with_pace
from spikeguard_server.replay.findings import Found, fold_incidents, monitor_of


@dataclass(frozen=True, slots=True)
class Stretch:
    """The stored samples of one segment."""

    key: Hashable
    parent: tuple[Hashable, int] | None  # the segment that it goes on from, and after which step
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Branch:
    """Segments that go on from one another without a step back."""

    samples: Sequence[Sample]
    parent: tuple[int, int] | None = None  # an earlier branch, and the last step shared with it


@dataclass(frozen=True, slots=True)
class Foreseen:
    """One incident, and what would have been proposed for it."""

    branch: int
    found: Found
    advice: tuple[Advice, ...]


def branches_of(stretches: Sequence[Stretch]) -> list[Branch]:
    """The branches of a history, oldest first; parents stand before their children."""
    found: list[Branch] = []
    place: dict[Hashable, int] = {}
    for one in stretches:
        known = one.parent is not None and one.parent[0] in place
        if one.parent is None or not known:
            place[one.key] = len(found)
            found.append(Branch(one.samples))
            continue
        at, step = place[one.parent[0]], one.parent[1]
        before = found[at].samples
        if not before or step >= before[-1].step:
            place[one.key] = at
            found[at] = replace(found[at], samples=[*before, *one.samples])
        else:
            place[one.key] = len(found)
            found.append(Branch(one.samples, (at, step)))
    return found


@dataclass
class _Watch:
    """One branch while it is watched."""

    branch: int
    samples: Sequence[Sample]
    feed: SampleFeed
    watcher: Watcher
    opened: int  # incidents that were numbered before it
    told: int  # proposals before it
    events: list[Event] = field(default_factory=list)

    def foreseen(self) -> list[Foreseen]:
        """What was found so far."""
        advice = self.watcher.advice[self.told :]
        return [
            Foreseen(
                self.branch, found,
                tuple(one for one in advice if one.incident == self.opened + number),
            )
            for number, found in enumerate(fold_incidents(self.events, self.samples), start=1)
        ]  # fmt: skip


@dataclass
class HistoryReplay:
    """One policy over the branches of a run."""

    branches: Sequence[Branch]
    policy: Policy
    assumed: Assumed
    choice: DetectorChoice | None = None
    _watches: list[_Watch] = field(default_factory=list)
    _left: dict[tuple[int, int], tuple[bytes, Watcher]] = field(default_factory=dict)

    def rows(self) -> Iterator[int]:
        """Go through it; yields the step that it stands at."""
        for at, branch in enumerate(self.branches):
            watch = self._begin(at, branch)
            self._watches.append(watch)
            for piece, cut in self._pieces(at, branch):
                for step, events in watch.feed.told(piece):
                    watch.watcher.take(step, events)
                    watch.events += events
                    yield step
                if cut is not None:
                    self._left[at, cut] = (watch.feed.monitor.dump(), deepcopy(watch.watcher))

    @property
    def foreseen(self) -> list[Foreseen]:
        """Every incident so far, branch by branch."""
        return [one for watch in self._watches for one in watch.foreseen()]

    def _begin(self, at: int, branch: Branch) -> _Watch:
        """Where the branch was left from, or the beginning."""
        left = self._left.get(branch.parent) if branch.parent is not None else None
        if left is None or branch.parent is None:
            watcher = Watcher(self.policy, with_pace(self.assumed, branch.samples))
            feed = SampleFeed(monitor_of(self.choice), self.choice)
            return _Watch(at, branch.samples, feed, watcher, 0, 0)
        monitor, watcher = Monitor.load(left[0]), deepcopy(left[1])
        monitor.use(self.choice or DetectorChoice())
        watcher.take(branch.parent[1], monitor.end())
        feed = SampleFeed(monitor, self.choice)
        return _Watch(at, branch.samples, feed, watcher, watcher.opened, len(watcher.advice))

    def _pieces(self, at: int, branch: Branch) -> Iterator[tuple[Sequence[Sample], int | None]]:
        """The samples, cut at the steps after which others left the branch."""
        leaving = {one.parent[1] for one in self.branches if one.parent and one.parent[0] == at}
        rest = branch.samples
        for cut in sorted(leaving):
            size = sum(one.step <= cut for one in rest)
            yield rest[:size], cut
            rest = rest[size:]
        yield rest, None
