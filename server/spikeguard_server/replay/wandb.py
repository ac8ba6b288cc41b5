"""Headers of CSV files that were exported from a panel of Weights & Biases.

Law: pure. A panel writes, for every run, "run - metric" and, beside it, the extremes of the points
that it drew as one: "run - metric__MIN" and "run - metric__MAX".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spikeguard_cli.command import CommandFailed

BETWEEN = " - "
EXTREMES = ("__MIN", "__MAX")
AXIS = "_step"  # written for every run beside the axis of all, blank where it has no point
EXPORT = (
    "a W&B run in its own binary format: export it as JSONL, one history row a line "
    '(json.dumps of each of wandb.Api().run("entity/project/id").scan_history()), '
    "or as CSV from the panel's menu"
)


def is_export(header: Sequence[str]) -> bool:
    """Whether `header` is of a panel: an axis, and columns named after runs."""
    return any(name.endswith(EXTREMES) for name in header) or (
        len(header) > 1 and all(BETWEEN in name for name in header[1:])
    )


def unwrapped(path: Path, header: Sequence[str], run: str | None) -> list[str | None]:
    """The metric of each column, None for one to leave out; raises `CommandFailed`."""
    owners = [name.rpartition(BETWEEN)[0] if BETWEEN in name else None for name in header]
    runs = list(dict.fromkeys(owner for owner in owners if owner))
    if run is not None and run not in runs:
        raise CommandFailed(f"{path}: no run `{run}` (found {', '.join(runs[:10])}): name another")
    if run is None and len(runs) > 1:
        raise CommandFailed(
            f"{path}: {len(runs)} runs: name one with --run NAME (found {', '.join(runs[:10])})"
        )
    return [_metric(name, owner, run) for name, owner in zip(header, owners, strict=True)]


def _metric(name: str, owner: str | None, run: str | None) -> str | None:
    if name.endswith(EXTREMES) or (owner is not None and run is not None and owner != run):
        return None
    metric = name if owner is None else name.rpartition(BETWEEN)[2]
    return None if owner is not None and metric == AXIS else metric
