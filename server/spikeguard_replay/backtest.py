"""Detection over many logs, by one setting or several.

A file that cannot be read never stops the others; it is listed with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product, repeat
from pathlib import Path
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.wording import table as aligned
from spikeguard_protocol import Kind
from spikeguard_protocol.escaping import printable
from spikeguard_replay.judging import choice_of, judge
from spikeguard_replay.log import Log
from spikeguard_replay.reading import logs_under, read_log

PER = 10_000
PROCESSES = 2
MOST = 50  # combinations of settings
DRAWN = 1_500  # points of a curve that are kept to be drawn
Candidate = Mapping[str, float]  # settings, by name


@dataclass(frozen=True)
class Incidents:
    """What one candidate found in one log."""

    kinds: tuple[Kind, ...] = ()  # in their order
    steps: tuple[int, ...] = ()  # at which they were detected


@dataclass(frozen=True)
class BacktestedLog:
    """What one log gave. `steps` counts the samples that hold a loss."""

    file: str
    rows: int = 0
    steps: int = 0
    found: tuple[Incidents, ...] = ()  # by candidate
    curve: tuple[Sequence[int], Sequence[float]] = field(default=((), ()), repr=False)
    described: str = ""
    unread: str | None = None  # why nothing could be read

    def plain(self, candidate: int) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.unread is not None:
            return {"file": self.file, "unread": self.unread}
        kinds = self.found[candidate].kinds
        return {
            "file": self.file,
            "rows": self.rows,
            "steps": self.steps,
            "incidents": len(kinds),
            "alarms_per_10000_steps": rate([self], candidate),
            "kinds": counted(kinds),
            "guessed": self.described,
        }


def candidates_of(swept: Sequence[tuple[str, Sequence[float]]]) -> list[Candidate]:
    """Every combination of the values to try; raises `CommandFailed` for a wrong one."""
    names = [name for name, _ in swept]
    found = [
        dict(zip(names, values, strict=True)) for values in product(*(one for _, one in swept))
    ]
    if len(found) > MOST:
        raise CommandFailed(f"--set: {len(found)} combinations, {MOST} at most: try fewer values")
    for one in found:
        choice_of(one, "--set")
    return list(found)


def logs_in(folder: Path) -> list[Path]:
    """Every log under `folder`; raises `CommandFailed` where there is none."""
    try:
        paths = logs_under(folder)
    except OSError as error:
        raise CommandFailed(f"{folder}: cannot be searched: {error.strerror}") from error
    if not paths:
        raise CommandFailed(f"{folder}: no file in it: name a folder of training logs")
    return paths


def backtest(
    paths: Sequence[Path], folder: Path, candidates: Sequence[Candidate]
) -> Iterator[BacktestedLog]:
    """One after the other where there are few, else in `PROCESSES`; in the order of `paths`."""
    names = [str(path.relative_to(folder)) for path in paths]
    if len(paths) < 2 * PROCESSES:
        yield from map(backtest_log, paths, names, repeat(candidates))
        return
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(backtest_log, paths, names, repeat(candidates))


def backtest_log(path: Path, name: str, candidates: Sequence[Candidate] = ({},)) -> BacktestedLog:
    """Detection over the log at `path`, listed as `name`, by every candidate."""
    try:
        log = read_log(path)
    except CommandFailed as error:
        said = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
        return BacktestedLog(name, unread=said)
    found = tuple(_incidents(log, one) for one in candidates)
    loss = log.signals.get("loss")
    steps = 0 if loss is None else int(loss.measured.sum())
    return BacktestedLog(name, len(log), steps, found, _curve(log), log.described())


def _incidents(log: Log, candidate: Candidate) -> Incidents:
    incidents = judge(log, choice_of(candidate, "--set")).incidents
    kinds = tuple(one.kind for one in incidents)
    return Incidents(kinds, tuple(one.detected_step for one in incidents))


def _curve(log: Log) -> tuple[Sequence[int], Sequence[float]]:
    """The loss, thinned out to be drawn."""
    loss = log.signals.get("loss")
    if loss is None:
        return (), ()
    here = loss.measured
    every = max(1, int(here.sum()) // DRAWN)
    return log.steps[here][::every].tolist(), loss.values[here][::every].tolist()


def rate(logs: Sequence[BacktestedLog], candidate: int) -> float | None:
    """Incidents per 10,000 logged steps over `logs`; None where no step was logged."""
    steps = sum(one.steps for one in logs)
    return sum(len(one.found[candidate].kinds) for one in logs) * PER / steps if steps else None


def counted(kinds: Sequence[Kind]) -> dict[str, int]:
    """How often each kind occurs."""
    return {kind.value: n for kind, n in sorted(Counter(kinds).items())}


def backtest_json(logs: Sequence[BacktestedLog], candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The whole backtest, as `--json` prints it: by candidate where there are several."""
    whole = [_candidate_json(logs, at) for at in range(len(candidates))]
    if len(candidates) == 1:
        return whole[0]
    tried = zip(candidates, whole, strict=True)
    return {"candidates": [{"set": dict(one), **plain} for one, plain in tried]}


def _candidate_json(logs: Sequence[BacktestedLog], candidate: int) -> dict[str, Any]:
    read = [one for one in logs if one.unread is None]
    kinds = [kind for one in read for kind in one.found[candidate].kinds]
    return {
        "files": [one.plain(candidate) for one in logs],
        "read": len(read),
        "unread": len(logs) - len(read),
        "rows": sum(one.rows for one in read),
        "steps": sum(one.steps for one in read),
        "incidents": len(kinds),
        "alarms_per_10000_steps": rate(read, candidate),
        "kinds": counted(kinds),
    }


def table(logs: Sequence[BacktestedLog], candidates: Sequence[Candidate]) -> str:
    """A row a file, a row for all, then what was not read; a column a candidate where there are
    several."""
    read = [one for one in logs if one.unread is None]
    unread = [one for one in logs if one.unread is not None]
    parts = [_of_one(read) if len(candidates) == 1 else _of_many(read, candidates)] if read else []
    if unread:
        parts.append(f"not read: {len(unread)}")
        parts += [printable(f"  {one.file}: {one.unread}") for one in unread]
    return "\n".join(parts)


def _of_one(read: Sequence[BacktestedLog]) -> str:
    rows = [_row(one.file, [one]) for one in read]
    if len(read) > 1:
        rows.append(_row(f"{len(read)} files", read))
    return aligned(("file", "rows", "incidents", "per 10,000", "kinds"), rows, numbers=(1, 2, 3))


def _row(name: str, logs: Sequence[BacktestedLog]) -> tuple[str, ...]:
    kinds = [kind for one in logs for kind in one.found[0].kinds]
    said = ", ".join(f"{n} {word.replace('_', ' ')}" for word, n in counted(kinds).items())
    rows = f"{sum(one.rows for one in logs):,}"
    return name, rows, str(len(kinds)), _rate(rate(logs, 0)), said or "-"


def _of_many(read: Sequence[BacktestedLog], candidates: Sequence[Candidate]) -> str:
    head = ("file", "rows", *map(label, candidates))
    rows = [
        [one.file, f"{one.rows:,}", *(str(len(found.kinds)) for found in one.found)] for one in read
    ]
    sums = [sum(len(one.found[at].kinds) for one in read) for at in range(len(candidates))]
    rows.append([f"{len(read)} files", f"{sum(one.rows for one in read):,}", *map(str, sums)])
    rates = [_rate(rate(read, at)) for at in range(len(candidates))]
    rows.append(["incidents per 10,000 steps", "", *rates])
    return aligned(head, rows, numbers=range(1, len(head)))


def label(candidate: Candidate) -> str:
    """A candidate in a column's head and in the picture."""
    return " ".join(f"{name}={value:g}" for name, value in candidate.items()) or "default"


def _rate(found: float | None) -> str:
    return "-" if found is None else f"{found:.2f}"
