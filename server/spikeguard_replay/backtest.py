"""Detection over many logs, by one setting or several.

A file that cannot be read never stops the others; it is listed with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
) -> list[BacktestedLog]:
    """What every log gave, in the order of `paths`."""
    names = [str(path.relative_to(folder)) for path in paths]
    with ProcessPoolExecutor(PROCESSES) as processes:
        return list(processes.map(backtest_log, paths, names, repeat(candidates)))


def backtest_log(path: Path, name: str, candidates: Sequence[Candidate]) -> BacktestedLog:
    """Detection over the log at `path`, listed as `name`, by every candidate."""
    try:
        log = read_log(path)
    except (CommandFailed, OSError) as error:
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


def summaries(
    logs: Sequence[BacktestedLog], candidates: Sequence[Candidate]
) -> list[dict[str, Any]]:
    """By candidate what every log gave, and all together."""
    read = [one for one in logs if one.unread is None]
    return [
        {
            "set": dict(candidate),
            "files": [
                {"file": one.file, **({"unread": one.unread} if one.unread else summary([one], at))}
                for one in logs
            ],
            "read": len(read),
            "unread": len(logs) - len(read),
            **summary(read, at),
        }
        for at, candidate in enumerate(candidates)
    ]


def table(tried: Sequence[Mapping[str, Any]]) -> str:
    """What `summaries` gave: a row a file, a row for all, then what was not read; a column a
    candidate where there are several."""
    whole = tried[0]
    told = zip(*(one["files"] for one in tried), strict=True)
    rows = [[files[0]["file"], *_cells(files)] for files in told if "unread" not in files[0]]
    if whole["read"] > 1:
        rows.append([f"{whole['read']} files", *_cells(tried)])
    head = ["file", "rows", "incidents", "per 10,000", "kinds"]
    if len(tried) > 1:
        head = ["file", "rows", *(label(one["set"]) for one in tried)]
        rows.append(["incidents per 10,000 steps", "", *map(_rate, tried)])
    parts = [aligned(head, rows, numbers=range(1, len(tried) + 3))] if whole["read"] else []
    if unread := [one for one in whole["files"] if "unread" in one]:
        parts.append(f"not read: {len(unread)}")
        parts += [printable(f"  {one['file']}: {one['unread']}") for one in unread]
    return "\n".join(parts)


def _cells(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows, and incidents by candidate; of a single candidate also their rate and kinds."""
    cells = [f"{found[0]['rows']:,}", *(str(one["incidents"]) for one in found)]
    if len(found) > 1:
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
