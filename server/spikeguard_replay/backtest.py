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

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.wording import table as aligned
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol.escaping import printable
from spikeguard_replay.judging import choice_of, judge
from spikeguard_replay.log import Floats
from spikeguard_replay.reading import read_log

PER = 10_000
PROCESSES = 2
MOST = 50  # combinations of settings
NO_CURVE = np.empty(0, np.int64), np.empty(0)
Candidate = Mapping[str, float]  # settings, by name


@dataclass(frozen=True)
class BacktestedLog:
    """What one log gave. `steps` counts the samples that hold a loss."""

    file: str
    rows: int = 0
    steps: int = 0
    found: tuple[tuple[Incident, ...], ...] = ()  # by candidate
    curve: tuple[NDArray[np.int64], Floats] = field(default=NO_CURVE, repr=False)
    unread: str | None = None  # why nothing could be read

    def plain(self, candidate: int) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.unread is not None:
            return {"file": self.file, "unread": self.unread}
        return {"file": self.file, **summary([self], candidate)}


def candidates_of(swept: Sequence[tuple[str, Sequence[float]]]) -> list[Candidate]:
    """Every combination of the values to try; raises `CommandFailed` for a wrong one."""
    names = [name for name, _ in swept]
    tried = product(*(values for _, values in swept))
    found: list[Candidate] = [dict(zip(names, values, strict=True)) for values in tried]
    if len(found) > MOST:
        raise CommandFailed(f"--set: {len(found)} combinations, {MOST} at most: try fewer values")
    for one in found:
        choice_of(one, "--set")
    return found


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
    found = tuple(judge(log, choice_of(one, "--set")).incidents for one in candidates)
    loss = log.signals.get("loss")
    steps = 0 if loss is None else int(loss.measured.sum())
    return BacktestedLog(name, len(log), steps, found, log.curve("loss"))


def summary(logs: Sequence[BacktestedLog], candidate: int) -> dict[str, Any]:
    """What `logs` gave together; the rate is None where no step holds a loss."""
    found = [one.kind.value for log in logs for one in log.found[candidate]]
    steps = sum(log.steps for log in logs)
    return {
        "rows": sum(log.rows for log in logs),
        "steps": steps,
        "incidents": len(found),
        "alarms_per_10000_steps": len(found) * PER / steps if steps else None,
        "kinds": dict(sorted(Counter(found).items())),
    }


def backtest_json(logs: Sequence[BacktestedLog], candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The whole backtest, as `--json` prints it: by candidate where there are several."""
    read = [one for one in logs if one.unread is None]
    whole = [
        {
            "files": [one.plain(candidate) for one in logs],
            "read": len(read),
            "unread": len(logs) - len(read),
            **summary(read, candidate),
        }
        for candidate in range(len(candidates))
    ]
    if len(candidates) == 1:
        return whole[0]
    tried = zip(candidates, whole, strict=True)
    return {"candidates": [{"set": dict(one), **plain} for one, plain in tried]}


def table(logs: Sequence[BacktestedLog], candidates: Sequence[Candidate]) -> str:
    """A row a file, a row for all, then what was not read; a column a candidate where there are
    several."""
    read = [one for one in logs if one.unread is None]
    unread = [one for one in logs if one.unread is not None]
    told = [(one.file, [one]) for one in read]
    if len(read) > 1:
        told.append((f"{len(read)} files", read))
    rows = [[name, *_cells(some, len(candidates))] for name, some in told]
    head = ["file", "rows", "incidents", "per 10,000", "kinds"]
    if len(candidates) > 1:
        head = ["file", "rows", *map(label, candidates)]
        rates = (_rate(summary(read, at)) for at in range(len(candidates)))
        rows.append(["incidents per 10,000 steps", "", *rates])
    parts = [aligned(head, rows, numbers=range(1, len(candidates) + 3))] if read else []
    if unread:
        parts.append(f"not read: {len(unread)}")
        parts += [printable(f"  {one.file}: {one.unread}") for one in unread]
    return "\n".join(parts)


def _cells(logs: Sequence[BacktestedLog], candidates: int) -> list[str]:
    """Rows and incidents of some logs; of a single candidate also their rate and kinds."""
    found = [summary(logs, at) for at in range(candidates)]
    cells = [f"{found[0]['rows']:,}", *(str(one["incidents"]) for one in found)]
    if candidates > 1:
        return cells
    kinds = found[0]["kinds"].items()
    said = ", ".join(f"{n} {word.replace('_', ' ')}" for word, n in kinds)
    return [*cells, _rate(found[0]), said or "-"]


def label(candidate: Candidate) -> str:
    """A candidate in a column's head and in the picture."""
    return " ".join(f"{name}={value:g}" for name, value in candidate.items()) or "default"


def _rate(found: Mapping[str, Any]) -> str:
    rate = found["alarms_per_10000_steps"]
    return "-" if rate is None else f"{rate:.2f}"
