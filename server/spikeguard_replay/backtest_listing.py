"""A backtest as one table for a person."""

from __future__ import annotations

from collections.abc import Sequence

from spikeguard_cli.wording import table as aligned
from spikeguard_protocol.escaping import printable
from spikeguard_replay.backtest import BacktestedLog, Candidate, counted, rate


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
