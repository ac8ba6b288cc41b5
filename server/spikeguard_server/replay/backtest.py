"""Detection over many logs: what every file gave, and the rate of alarms over all of them.

Law: one file that cannot be read never stops the others; it is listed with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.wording import table as aligned
from spikeguard_protocol import Kind
from spikeguard_protocol.escaping import printable
from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice
from spikeguard_server.replay.findings import Findings, replay
from spikeguard_server.replay.mlflow import RECORD, is_run
from spikeguard_server.replay.reading import read_log

PER = 10_000
DEEPEST = 100  # folders in one another
HEAD = ("file", "rows", "incidents", "per 10,000", "kinds")
NUMBERS = (1, 2, 3)


@dataclass(frozen=True)
class BacktestedLog:
    """What one log gave. `steps` counts the samples that hold a loss."""

    file: str
    rows: int = 0
    steps: int = 0
    kinds: tuple[Kind, ...] = field(default=())  # of its incidents, in their order
    guessed: str = ""
    unread: str | None = None  # why nothing could be read

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.unread is not None:
            return {"file": self.file, "unread": self.unread}
        return {
            "file": self.file,
            "rows": self.rows,
            "steps": self.steps,
            "incidents": len(self.kinds),
            "alarms_per_10000_steps": rate([self]),
            "kinds": {kind.value: n for kind, n in sorted(Counter(self.kinds).items())},
            "guessed": self.guessed,
        }


def backtest_log(path: Path, name: str, choice: DetectorChoice | None = None) -> BacktestedLog:
    """Detection over the log at `path`, listed as `name`, by the default or by `choice`."""
    try:
        log = read_log(path)
    except CommandFailed as error:
        return BacktestedLog(
            name, unread=str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
        )
    return of_findings(
        name,
        replay(log.samples, choice),
        sum("loss" in one.values for one in log.samples),
        log.guessed,
    )


def of_findings(name: str, findings: Findings, steps: int, guessed: str = "") -> BacktestedLog:
    """`findings` as a line of the table."""
    kinds = tuple(found.judgement.kind for found in findings.incidents)
    return BacktestedLog(name, findings.samples, steps, kinds, guessed)


def rate(lines: Sequence[BacktestedLog]) -> float | None:
    """Incidents per 10,000 logged steps over `lines`; None where no step was logged."""
    steps = sum(line.steps for line in lines)
    return sum(len(line.kinds) for line in lines) * PER / steps if steps else None


def sources(folder: Path, depth: int = DEEPEST) -> list[Path]:
    """Every log under `folder`, sorted: files, and folders that are one run together.

    What begins with a dot, MLflow's record of an experiment, and what lies deeper than `depth`
    folders, is passed over.
    """
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == RECORD:
            continue
        if path.is_dir() and not path.is_symlink():
            found += [path] if is_run(path) else sources(path, depth - 1) if depth else []
        elif path.is_file():
            found.append(path)
    return found


def backtest_json(lines: Sequence[BacktestedLog]) -> dict[str, Any]:
    """The whole backtest, as `--json` prints it."""
    read = [line for line in lines if line.unread is None]
    return {
        "files": [line.plain() for line in lines],
        "read": len(read),
        "unread": len(lines) - len(read),
        "rows": sum(line.rows for line in read),
        "steps": sum(line.steps for line in read),
        "incidents": sum(len(line.kinds) for line in read),
        "alarms_per_10000_steps": rate(read),
        "kinds": _counted([kind for line in read for kind in line.kinds]),
    }


def _counted(kinds: Sequence[Kind]) -> dict[str, int]:
    return {kind.value: n for kind, n in sorted(Counter(kinds).items())}


def table(lines: Sequence[BacktestedLog]) -> str:
    """The whole backtest for a person: a row a file, a row for all, then what was not read."""
    read = [line for line in lines if line.unread is None]
    unread = [line for line in lines if line.unread is not None]
    rows = [_row(line) for line in read]
    if len(read) > 1:
        rows.append(_row(_together(read)))
    parts = [aligned(HEAD, rows, numbers=NUMBERS)] if read else []
    if unread:
        parts.append(f"not read: {len(unread)}")
        parts += [printable(f"  {line.file}: {line.unread}") for line in unread]
    return "\n".join(parts)


def _together(lines: Sequence[BacktestedLog]) -> BacktestedLog:
    return BacktestedLog(
        f"{len(lines)} files",
        sum(line.rows for line in lines),
        sum(line.steps for line in lines),
        tuple(kind for line in lines for kind in line.kinds),
    )


def _row(line: BacktestedLog) -> tuple[str, ...]:
    alarms = rate([line])
    kinds = ", ".join(f"{n} {word.replace('_', ' ')}" for word, n in _counted(line.kinds).items())
    return (
        line.file,
        f"{line.rows:,}",
        str(len(line.kinds)),
        "-" if alarms is None else f"{alarms:.2f}",
        kinds or "-",
    )
