"""What stands in the tables after an upgrade, and whether every promise was kept.

Law: read with plain SQL; jobs say what was acknowledged and carried out, nothing else is believed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sql

from benchmarks.faults_truth import read_attempt
from spikeguard_protocol import RunId
from spikeguard_server.store.tables.core import run_key

Row = tuple[Any, ...]
_AUDIT = sql.text(
    "select run_id, number, at, actor, action, subject, before, after, reason from audit"
)
_MINE = "from {} where run_id = :run"
_COMMANDS = sql.text(f"select incident, number, verb, state, judgement {_MINE.format('commands')}")
_APPLIED = sql.text(
    f"select subject, count(*) {_MINE.format('audit')} and action = 'apply' group by subject"
)
_INCIDENTS = sql.text(f"select number, state, kind, outcome {_MINE.format('incidents')}")
_RELEARNED = sql.text(f"select count(*) {_MINE.format('audit')} and action = 'detection.relearned'")
_STEPS = sql.text(
    "select a.number, s.segment, s.step from samples s join attempts a "
    "on a.run_id = s.run_id and a.number = s.attempt where s.run_id = :run"
)
_DROPPED = sql.text("select coalesce(sum(dropped_samples), 0) from attempts where run_id = :run")


@dataclass
class Verdict:
    """What became of the promises. The first part should be nothing."""

    missing: int = 0  # acknowledged samples that are not stored as they were sent
    twice: int = 0  # samples that are stored twice
    foreign: int = 0  # stored samples that were never acknowledged
    commands_twice: int = 0  # carried out, or recorded as such, more than once
    commands_left: list[str] = field(default_factory=list)  # approved, and nothing came of it
    incidents_left: list[str] = field(default_factory=list)  # still open though the run is calm
    audit_holes: int = 0  # runs whose audit skips a number
    audit_lost: int = 0  # entries of before the upgrade that are not there as they were
    relearned_otherwise: list[str] = field(default_factory=list)  # not once, as promised
    refused_later: int = 0  # messages refused though only the new release served
    untold: int = 0  # steps of real agents that the server does not have
    # what happened
    runs: int = 0
    acknowledged: int = 0
    commands: int = 0
    relearned: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)  # of incidents
    refused: dict[str, int] = field(default_factory=dict)  # by status, amid the upgrade
    longest_s: float = 0.0  # that a message waited
    agents: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        counts = (
            self.missing, self.twice, self.foreign, self.commands_twice, self.audit_holes,
            self.audit_lost, self.refused_later, self.untold,
        )  # fmt: skip
        lists = (self.commands_left, self.incidents_left, self.relearned_otherwise)
        return not any(counts) and not any(lists)


def read_audit(connection: sql.Connection) -> set[Row]:
    """Every entry as it stands."""
    return {tuple(row) for row in connection.execute(_AUDIT)}


def judge_audit(verdict: Verdict, before: set[Row], after: set[Row]) -> None:
    """Nothing of before was changed or lost, and no number is missing."""
    verdict.audit_lost = len(before - after)
    numbers: dict[Any, list[int]] = {}
    for row in after:
        numbers.setdefault(row[0], []).append(row[1])
    verdict.audit_holes = sum(
        sorted(found) != list(range(1, len(found) + 1)) for found in numbers.values()
    )


def judge_job(
    verdict: Verdict, connection: sql.Connection, told: dict[str, Any], *, since: float,
    relearned: int,
) -> None:  # fmt: skip
    """What a job of `benchmarks.upgrade_jobs` says against what is stored; from `since` on only
    the new release served."""
    name = told["run"]
    sent = {(segment, step): loss for segment, step, loss in told["acknowledged"]}
    rows = read_attempt(connection, name, told["attempt"])
    stored = {(segment, step): loss for segment, step, loss in rows}
    verdict.acknowledged += len(sent)
    verdict.twice += len(rows) - len(stored)
    verdict.missing += sum(stored.get(place) != loss for place, loss in sent.items())
    verdict.foreign += len(stored.keys() - sent.keys())
    carried_out = Counter(command for command, _, _ in told["executed"])
    verdict.commands_twice += sum(times > 1 for times in carried_out.values())
    for at, reason in told["refusals"]:
        _count(verdict.refused, reason[:3])
        verdict.refused_later += at > since
    verdict.longest_s = max(verdict.longest_s, told["longest_s"])
    judge_run(verdict, connection, name, set(carried_out), relearned=relearned)


def judge_run(
    verdict: Verdict, connection: sql.Connection, name: str, carried_out: set[str] | None, *,
    relearned: int,
) -> None:  # fmt: skip
    """Commands, incidents and the change of hands of one run; `carried_out` None: not known."""
    key = {"run": run_key(RunId("default", name))}
    verdict.runs += 1
    states = {
        f"{name}#{row.incident}.{row.number}": row.state
        for row in connection.execute(_COMMANDS, key)
    }
    applied = {row[0].rpartition("/")[2]: row[1] for row in connection.execute(_APPLIED, key)}
    verdict.commands += len(applied)
    verdict.commands_twice += sum(times > 1 for times in applied.values())
    if carried_out is not None:
        done = {command.rpartition("/")[2] for command in carried_out}
        verdict.commands_left += sorted(done ^ applied.keys())
    waiting = ("approved", "delivered", "applied")
    verdict.commands_left += sorted(c for c, state in states.items() if state in waiting)
    for row in connection.execute(_INCIDENTS, key):
        _count(verdict.outcomes, f"{row.kind} {row.outcome or row.state}")
        if row.state != "closed":
            verdict.incidents_left.append(f"{name}#{row.number}")
    times = int(connection.execute(_RELEARNED, key).scalar_one())
    verdict.relearned += times
    if times != relearned:
        verdict.relearned_otherwise.append(f"{name}: {times} instead of {relearned}")


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def judge_agent(
    verdict: Verdict, connection: sql.Connection, name: str, trained: list[int], *,
    relearned: int, killed: bool = False,
) -> None:  # fmt: skip
    """A real agent's run: every step that it trained is stored once. One that was killed may have
    had its last steps in memory alone."""
    key = {"run": run_key(RunId("default", name))}
    rows = [tuple(row) for row in connection.execute(_STEPS, key)]
    verdict.twice += len(rows) - len(set(rows))
    untold = Counter(trained) - Counter(step for _, _, step in rows)
    dropped = int(connection.execute(_DROPPED, key).scalar_one())
    verdict.untold += dropped + (0 if killed else untold.total())
    commands = [f"{row.verb} {row.state}" for row in connection.execute(_COMMANDS, key)]
    verdict.agents[name] = (
        f"{len(trained)} steps trained, {len(rows)} stored; {', '.join(commands)}"
    )
    if killed:
        verdict.agents[name] += f"; {untold.total()} of the killed start in memory only"
        assert untold.total() < 10, untold
    if "rollback judged" not in commands:
        verdict.commands_left.append(f"{name}: {commands}")
    judge_run(verdict, connection, name, None, relearned=relearned)
