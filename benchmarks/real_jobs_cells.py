"""What a row's cells say, each from what its runs measured.

Five runs a row, of the same job: one without a fault; one that is given noise as data, rolls back
and leaves that out; one whose text leaves the noise out itself; one with a NaN and an order to
lower the rates; one that is killed and started again.
Invariant: a cell that could not be measured says why and is not a yes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.real_jobs_runs import Command, Run, Server, run_job
from benchmarks.real_jobs_text import EVERY_RANK, LAST, Plan
from spikeguard.loop.capabilities import SKIP_UPDATE
from spikeguard_core.events import Closed, Opened, Recurred, Revised
from spikeguard_protocol import (
    Action,
    BatchRange,
    Cause,
    CommandResult,
    ResultState,
    Rollback,
    ScaleLr,
)

LATE = 2  # steps from the first noise to the incident
NOISE = 8  # positions of it
CAUSES = (Cause.BAD_BATCH, Cause.RARE_TOKENS)
FACTOR, LOWERED = 0.5, 10  # of every learning rate, for so many steps
CLOSE = 0.005  # of the loss at the end


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of a row's runs, in steps."""

    steps: int = 280
    noise: int = 160  # the first position of it
    ordered: int = 172  # the step after which the rollback is ordered
    nan: int = 30
    scaled: int = 40  # the step after which the rates are ordered lower
    short: int = 80  # the length of the runs that need no more
    kill: int = 50
    checkpoint_every: int = 20


QUICK = Lengths(160, 104, 116, 14, 20, 48, 30, 12)  # a snapshot is the newest target


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer: whether it holds, and what was measured."""

    name: str
    holds: bool
    said: str


Measure = Callable[["Runs"], Cell]


class Runs:
    """The runs of one row, each made when a cell asks for it."""

    def __init__(self, command: Command, folder: Path, lengths: Lengths) -> None:
        self._command, self._folder, self.lengths = command, folder, lengths
        self.made: dict[str, Run] = {}

    def _run(self, name: str, plan: Plan, decide: Callable[[Server], Action | None]) -> Run:
        if name not in self.made:
            self.made[name] = run_job(self._command, plan, self._folder / name, decide)
        return self.made[name]

    def _plan(self, stop: int | None = None) -> Plan:
        lengths = self.lengths
        return Plan(
            out="",
            record="",
            steps=lengths.steps,
            stop=stop or lengths.steps,
            mark=lengths.short,
            checkpoint_every=lengths.checkpoint_every,
        )

    def plain(self) -> Run:
        """Without a fault."""
        return self._run("plain", self._plan(), lambda _: None)

    def spike(self) -> Run:
        """Noise for some positions; taken back to before them, which are left out."""
        first = self.lengths.noise
        noise = (first, first + NOISE)
        decide = partial(_roll_back, noise, self.lengths.ordered)
        return self._run("spike", replace(self._plan(), bad=noise), decide)

    def reference(self) -> Run:
        """Never given those positions, and never asked to do anything."""
        first = self.lengths.noise
        plan = replace(self._plan(), omit=(first, first + NOISE))
        return self._run("reference", plan, lambda _: None)

    def orders(self) -> Run:
        """One gradient of the last rank, or of all alike, is NaN; later the rates are lowered."""
        nan = (self.lengths.nan, EVERY_RANK if self._command.alike else self._command.ranks - 1)
        plan = replace(self._plan(self.lengths.short), nan=nan)
        return self._run("orders", plan, partial(_scale, self.lengths.scaled))

    def killed(self) -> Run:
        """Killed between two checkpoints and started again."""
        plan = replace(self._plan(self.lengths.short), kill=self.lengths.kill)
        return self._run("killed", plan, lambda _: None)


def _roll_back(noise: tuple[int, int], step: int, server: Server) -> Action | None:
    if server.orders or server.newest_step < step:
        return None
    before = [target for target in server.targets() if target.position <= noise[0]]
    if not before:
        return None
    newest = max(before, key=lambda target: target.step)
    return Rollback(newest.name, newest.step, BatchRange(*noise))


def _scale(step: int, server: Server) -> Action | None:
    if server.orders or server.newest_step < step:
        return None
    return ScaleLr(FACTOR, LOWERED)


# ---- the cells -----------------------------------------------------------------------------------


def spike(runs: Runs) -> Cell:
    """Seen within two steps of the first noise."""
    run, first = runs.spike(), runs.lengths.noise + 1
    opened = _opened(run, first)
    if opened is None:
        return _failed("spike", run, "no incident")
    return Cell("spike", opened.step - first <= LATE, f"{opened.step - first} steps")


def cause(runs: Runs) -> Cell:
    """Put down to the data, and ranked so before the rollback was ordered."""
    run, first = runs.spike(), runs.lengths.noise + 1
    ranked = [
        event.causes[0].cause
        for event in run.server.events
        if isinstance(event, Opened | Revised | Recurred | Closed)
        and event.causes
        and first <= event.step <= runs.lengths.ordered
    ]
    if not ranked:
        return _failed("cause", run, "none named")
    return Cell("cause", ranked[-1] in CAUSES, str(ranked[-1]))


def nan_skipped(runs: Runs) -> Cell:
    """Weights, moments, momenta and counters of every rank keep their bits, and it is told."""
    run, step = runs.orders(), runs.lengths.nan
    lines = [run.steps(rank).get(step) for rank in range(len(run.ranks))]
    if not all(line is not None and "held" in line for line in lines):
        return _failed("NaN skipped", run, "the step was not made")
    held = [bool(line["held"]) for line in lines if line is not None]
    told = step in run.server.dropped()
    said = "" if all(held) else f"held on {sum(held)} of {len(held)} ranks"
    if not all(held) and run.server.denies(SKIP_UPDATE):
        said = "reported only, as attach() says"
    return Cell("NaN skipped", all(held) and told, said or ("" if told else "not told"))


def rollback(runs: Runs) -> Cell:
    """Every rank ends with the bits of a run that never had the batches."""
    run = runs.spike()
    if (bad := _unfinished("rollback", run)) is not None:
        return bad
    if not (results := run.server.results()):
        return _failed(
            "rollback", run, "no answer to the order" if run.server.orders else "no target"
        )
    if _done(results) is None and 76 not in run.statuses:
        return Cell("rollback", False, results[-1].reason)
    other = runs.reference()
    if (bad := _unfinished("rollback", other)) is not None:
        return bad
    mine, theirs = run.digests(), other.digests()
    alike = sum(a == b != "" for a, b in zip(mine, theirs, strict=True))
    way = "by restart" if 76 in run.statuses else ""
    same = alike == len(mine)
    return Cell("rollback", same, way if same else f"alike on {alike} of {len(mine)} ranks")


def scale_lr(runs: Runs) -> Cell:
    """Every group of every optimizer, on every rank, for as long as ordered; then as it was."""
    run, plain = runs.orders(), runs.plain()
    done = _done(run.server.results())
    if done is None:
        reasons = [result.reason for result in run.server.results()]
        return _failed("scale_lr", run, reasons[-1] if reasons else "no answer to the order")
    wrong = 0
    for rank in range(len(run.ranks)):
        mine, theirs = run.steps(rank), plain.steps(rank)
        shared = (step for step in mine if step in theirs and step != runs.lengths.nan)
        wrong += sum(
            not _scaled_rightly(mine[s]["rates"], theirs[s]["rates"], s - done.step) for s in shared
        )
    return Cell("scale_lr", wrong == 0, f"{wrong} steps with other rates" if wrong else "")


def _scaled_rightly(mine: list[list[float]], theirs: list[list[float]], done: int) -> bool:
    """`done`: which step since the order this is; the last tenth of them climbs back."""
    flat = [rate for group in mine for rate in group]
    usual = [rate for group in theirs for rate in group]
    if len(flat) != len(usual) or not flat:
        return False
    lowered = 1 <= done <= LOWERED - max(1, LOWERED // 10)
    if lowered:
        return all(
            math.isclose(a, b * FACTOR, rel_tol=1e-9) for a, b in zip(flat, usual, strict=True)
        )
    return done == LOWERED or flat == usual


def restart(runs: Runs) -> Cell:
    """The items of every step, on every rank, and the bits at the end."""
    run, plain = runs.killed(), runs.plain()
    if (bad := _unfinished("restart", run)) is not None:
        return bad
    if len(run.statuses) < 2:
        return Cell("restart", False, "it was not killed")
    wrong = 0
    for rank in range(len(run.ranks)):
        mine, theirs = run.steps(rank), plain.steps(rank)
        wrong += sum(_once(mine[step]) != _once(theirs.get(step, {})) for step in mine)
    begun = [line["now"] for line in run.ranks[0] if "step" in line]
    again = min((b for a, b in pairwise(begun) if b <= a), default=0)
    if wrong or again <= 1:
        said = f"{wrong} steps with other items" if wrong else "it began at zero"
        return Cell("restart", False, said)
    alike = run.digests() == plain.digests("step")
    return Cell("restart", alike, "" if alike else "items exact, other bits")


def _once(line: dict[str, Any]) -> list[int]:
    """A step's items; a pipeline shows its first stage the first one twice, to learn its shape."""
    return [item for item, _ in groupby(line.get("items", []))]


def final_loss(runs: Runs) -> Cell:
    """The loss of the last steps over that of the run without a fault, which makes as many steps,
    the last of them on the same text."""
    run, plain = runs.spike(), runs.plain()
    if (bad := _unfinished("final loss", run) or _unfinished("final loss", plain)) is not None:
        return bad
    end = runs.lengths.steps
    ours, theirs = _last_losses(run, end + NOISE), _last_losses(plain, end)
    if len(ours) < LAST or len(theirs) < LAST:
        return _failed("final loss", run, "no losses")
    ratio = statistics.fmean(ours) / statistics.fmean(theirs)
    return Cell("final loss", ratio <= 1 + CLOSE, f"{100 * (ratio - 1):+.2f} %")


def failures(runs: Runs) -> Cell:
    """Of the guard itself, over all runs of the row."""
    counts: dict[str, int] = {}
    for run in runs.made.values():
        for place, count in run.faults().items():
            counts[place] = counts.get(place, 0) + count
    told = ", ".join(f"{place} {count}" for place, count in sorted(counts.items()))
    bad = [name for name, run in runs.made.items() if not run.ended_well]
    if bad:
        return Cell("failures", False, f"{', '.join(bad)} did not end well {told}".rstrip())
    return Cell("failures", not counts, told)


MEASURES: tuple[Measure, ...] = (
    spike,
    cause,
    nan_skipped,
    rollback,
    scale_lr,
    restart,
    final_loss,
    failures,
)


def _opened(run: Run, first: int) -> Opened | None:
    found = (e for e in run.server.events if isinstance(e, Opened) and e.step >= first)
    return next(found, None)


def _done(results: list[CommandResult]) -> CommandResult | None:
    return next((r for r in results if r.state is ResultState.APPLIED), None)


def _last_losses(run: Run, end: int) -> list[float]:
    """Of the last positions before `end`, as they were trained last."""
    losses, made = run.server.losses(), run.steps()
    return [
        losses[step]
        for step, line in sorted(made.items())
        if step in losses and end - LAST < line["position"] <= end
    ]


def _unfinished(name: str, run: Run) -> Cell | None:
    return None if run.ended_well else _failed(name, run, "")


def _failed(name: str, run: Run, said: str) -> Cell:
    """Refused, crashed, or ended well without what the cell is about."""
    if run.refused:
        return Cell(name, False, f"refused at attach: {run.refused}")
    if not run.ended_well:
        said = f"ended with status {run.statuses[-1]}" + (f": {said}" if said else "")
    return Cell(name, False, said)
