"""What a job can switch on for some steps when an order says so: other data, a costlier routing, a
tighter clip.

The job registers each by name with two functions of its own. Which are on at a step follows from
the journal and from where the run stands: an order's entry names the steps, a rollback to before
them abandons it. So they are on at the same steps on all ranks, off again on time, and after a
restart as before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spikeguard.commands.journal import Applying, Journal
from spikeguard.commands.orders import Refusal
from spikeguard.errors import AttachError, AttemptAborted
from spikeguard.faults import Faults, log
from spikeguard.ranks.rank_group import World, first_problem, in_step
from spikeguard.state.lineage import Progress
from spikeguard_protocol import Apply, ProtocolError, Rollback
from spikeguard_protocol.abilities import MAX_COST, MOST_MITIGATIONS
from spikeguard_protocol.orders import check_mitigation

Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Mitigation:
    """`apply` and `undo` are called between two steps, on every rank, in the loop's thread; `undo`
    also where `apply` raised. `cost`: for whoever approves, as "20 % a step"."""

    name: str
    apply: Act
    undo: Act
    cost: str = ""

    def __post_init__(self) -> None:
        try:
            check_mitigation("name", self.name)
        except ProtocolError as error:
            raise AttachError("mitigations", f"name {error.limit}", error.remedy) from None
        if not callable(self.apply) or not callable(self.undo):
            problem = f"{self.name}: apply and undo are not both functions"
            raise AttachError("mitigations", problem, "Give two functions without arguments")
        if len(self.cost) > MAX_COST:
            problem = f"{self.name}: cost takes at most {MAX_COST} characters"
            raise AttachError("mitigations", problem, "Shorten it")


class Mitigations:
    """Those of one job, and which of them are on."""

    def __init__(
        self,
        world: World,
        progress: Progress,
        journal: Journal,
        faults: Faults,
        given: Iterable[Mitigation] = (),
    ) -> None:
        """`given`: the same names in the same order on all ranks; raises `AttachError`."""
        self._world, self._progress, self._journal = world, progress, journal
        self._faults = faults
        self.registered: dict[str, Mitigation] = {}
        self._wanted: tuple[Applying, ...] = ()  # of which steps lie ahead
        self._on: set[str] = set()
        self.busy = False  # one is on, or was ordered for steps ahead: `settle` has to look
        self._missed: set[str] = set()  # ordered, and not registered by this start
        for each in given:
            if each.name in self.registered:
                remedy = "Give each a name of its own"
                raise AttachError("mitigations", f"there are two {each.name}", remedy)
            self.registered[each.name] = each
        if len(self.registered) > MOST_MITIGATIONS:
            problem = f"there are {len(self.registered)}, at most {MOST_MITIGATIONS} are taken"
            raise AttachError("mitigations", problem, "Register fewer")

    @property
    def on(self) -> tuple[str, ...]:
        """Names of those that the next step is made with."""
        return tuple(sorted(self._on))

    @property
    def costs(self) -> dict[str, str]:
        """By name, as they were registered."""
        return {name: each.cost for name, each in self.registered.items()}

    def check(self, action: Apply | Rollback) -> None:
        """Raise `Refusal` where this rank cannot switch on what `action` names."""
        name = action.name if isinstance(action, Apply) else action.apply
        if name is not None and name not in self.registered:
            known = ", ".join(self.registered) or "none"
            raise Refusal(f"this job has registered no mitigation {name}: {known}")
        if isinstance(action, Apply) and name in self._on:
            raise Refusal(f"{name} is on already")

    def take_up(self) -> str | None:
        """The run began, went back, or was ordered something: what the journal wants from here, as
        `settle`."""
        journal, steps = self._journal, self._progress.steps
        self._wanted = tuple(a for a in journal.applyings if a.end > steps and journal.wants(a))
        self.busy = bool(self._wanted or self._on)
        return self.settle()

    def settle(self) -> str | None:
        """Between two steps, on all ranks: switch on and off what is due. Why one could not be
        switched on, which then is on on no rank; raises `AttemptAborted` where that is not so."""
        if not self._wanted and not self._on:
            return None
        steps = self._progress.steps
        due = {each.name: each for each in self._wanted if each.start <= steps < each.end}
        for name in due.keys() - self.registered.keys() - self._missed:
            self._missed.add(name)
            said = f"{name} was ordered until step {due[name].end}: this start did not register it"
            self._faults.note("mitigation", said)
        due = {name: each for name, each in due.items() if name in self.registered}
        if due.keys() == self._on:
            return None
        off, coming = self._on - due.keys(), due.keys() - self._on
        with in_step(self._world):
            if problem := first_problem(self._world, self._called("undo", off)):
                raise AttemptAborted(problem)
            self._on -= off
            problem = first_problem(self._world, self._called("apply", coming))
            if problem is not None:
                if worse := first_problem(self._world, self._called("undo", coming)):
                    raise AttemptAborted(f"{problem}; {worse}")
                self._wanted = tuple(each for each in self._wanted if each.name not in coming)
                self._faults.note("mitigation", problem)
                return problem
        self._on |= coming
        self._log(off, coming, due)
        return None

    def _called(self, which: str, names: Iterable[str]) -> str | None:
        """Call those of `names` in order; why the first that raised did."""
        problem = None
        for name in sorted(names):
            try:
                getattr(self.registered[name], which)()
            except Exception as error:
                problem = problem or f"{which} of {name} failed: {error!r}"[:500]
        return problem

    def _log(self, off: Iterable[str], coming: Iterable[str], due: dict[str, Applying]) -> None:
        if self._world.leads:
            for name in sorted(off):
                log.info("mitigation %s is off from step %d on", name, self._progress.steps + 1)
            for name in sorted(coming):
                log.info("mitigation %s is on until step %d", name, due[name].end)
