"""What stands in the database after it all, and in what it differs from an undisturbed run.

Law: read with plain SQL from the tables themselves; nothing of the server's own reading is trusted
here. Times and ids of rows are left out, run names become RUN: all the rest has to agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sql

from benchmarks.faults_job import Tally
from spikeguard_protocol import RunId
from spikeguard_server.store.tables.core import run_key

Row = tuple[Any, ...]
PLACES = {
    "decisions": """select incident, number, step, kind, confidence, reason from incident_revisions
        where run_id = :run order by incident, number""",
    "incidents": """select number, state, kind, onset_step, outcome, record::text, revisions,
        commands from incidents where run_id = :run order by number""",
    "commands": """select incident, number, verb, arguments, state, revision, reason, automatic,
        decided_by, decided_step, applied_step, result, judgement from commands
        where run_id = :run order by incident, number""",
    # that it fell silent while nothing answered, and came back, is nothing of an undisturbed run;
    # what a post-mortem asks for is written when its turn comes, maybe after this was read
    "audit": """select actor, action, subject, before, after, reason from audit
        where run_id = :run and action not in
        ('silent', 'live', 'attempt.lost', 'attempt.found', 'follow_up') order by number""",
    "segments": """select attempt, segment, reason, parent_step, position, first_step, last_step
        from segments where run_id = :run order by attempt, segment""",
    "evidence": """select incident, attempt, segment, step, loss, grad_norm from incident_samples
        where run_id = :run order by incident, attempt, segment, step""",
}
_SAMPLES = sql.text("select segment, step, loss from samples where run_id = :run")
_NUMBERS = sql.text("select number from audit where run_id = :run order by number")


@dataclass(frozen=True)
class Facts:
    """What the database says of one run."""

    samples: tuple[Row, ...]  # segment, step, loss
    tables: dict[str, tuple[Row, ...]]
    audit_numbers: tuple[int, ...]


@dataclass
class Verdict:
    """What a disturbance did to the promises; all of it should be nothing."""

    runs: int = 0
    acknowledged: int = 0  # samples
    missing: int = 0  # acknowledged samples that are not stored as they were sent
    twice: int = 0  # samples that are stored twice
    foreign: int = 0  # stored samples that were never acknowledged
    differing: Counter[str] = field(default_factory=Counter)  # table -> runs that differ
    commands: int = 0  # carried out
    commands_twice: int = 0
    audit_holes: int = 0  # runs whose audit skips a number
    examples: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        counts = (self.missing, self.twice, self.foreign, self.commands_twice, self.audit_holes)
        return not any(counts) and not self.differing


def read_facts(connection: sql.Connection, name: str) -> Facts:
    """Everything about run `name`."""
    key = {"run": run_key(RunId("default", name))}
    tables = {
        place: tuple(_plain(row, name) for row in connection.execute(sql.text(statement), key))
        for place, statement in PLACES.items()
    }
    samples = tuple(tuple(row) for row in connection.execute(_SAMPLES, key))
    return Facts(samples, tables, tuple(connection.execute(_NUMBERS, key).scalars()))


def _plain(row: sql.Row[Any], name: str) -> Row:
    return tuple(str(value).replace(name, "RUN") for value in row)


def judge_run(verdict: Verdict, facts: Facts, twin: Facts, tally: Tally, name: str) -> None:
    """Add what became of run `name` to `verdict`."""
    _judge_samples(verdict, facts.samples, tally)
    verdict.commands += len(tally.executed)
    verdict.commands_twice += len(tally.executed) - len({c for c, _, _ in tally.executed})
    numbers = facts.audit_numbers
    verdict.audit_holes += numbers != tuple(range(1, len(numbers) + 1))
    for place, rows in facts.tables.items():
        if rows != twin.tables[place]:
            verdict.differing[place] += 1
            verdict.examples.append(f"{name}: {place}: {_first_difference(rows, twin, place)}")


def _judge_samples(verdict: Verdict, samples: tuple[Row, ...], tally: Tally) -> None:
    verdict.runs += 1
    verdict.acknowledged += len(tally.acknowledged)
    stored = {(segment, step): loss for segment, step, loss in samples}
    verdict.twice += len(samples) - len(stored)
    verdict.missing += sum(stored.get(at) != loss for at, loss in tally.acknowledged.items())
    verdict.foreign += len(stored.keys() - tally.acknowledged.keys())


def _first_difference(rows: tuple[Row, ...], twin: Facts, place: str) -> str:
    theirs = twin.tables[place]
    for number, (mine, other) in enumerate(zip(rows, theirs, strict=False)):
        if mine != other:
            return f"row {number}: {mine} instead of {other}"
    more, less = Counter(rows) - Counter(theirs), Counter(theirs) - Counter(rows)
    return f"{list(more)} besides" if more else f"without {list(less)}"


_OF_ATTEMPT = sql.text(
    "select segment, step, loss from samples s join attempts a "
    "on a.run_id = s.run_id and a.number = s.attempt where s.run_id = :run and a.id = :attempt"
)


def read_attempt(connection: sql.Connection, name: str, attempt: str) -> tuple[Row, ...]:
    """The samples of one attempt: segment, step, loss."""
    which = {"run": run_key(RunId("default", name)), "attempt": attempt}
    return tuple(tuple(row) for row in connection.execute(_OF_ATTEMPT, which))


def judge_attempt(verdict: Verdict, samples: tuple[Row, ...], tally: Tally) -> None:
    """Add what became of an attempt that was never alone: all its data, and no order."""
    _judge_samples(verdict, samples, tally)
    verdict.differing["orders to one of two"] += bool(tally.executed)
    verdict.differing += Counter()
