"""`spikeguard audit verify`: computes the audit's digests again, from the database itself.

Law: asks no server, and reads as whoever `DATABASE_URL` names, so that whoever does not trust the
server needs only the right to read. Status 0: every entry fits; 3: one does not; 1: it could not be
found out.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.exc import ProgrammingError

from spikeguard_cli.command import CommandFailed, say
from spikeguard_core.audit.chain import TOLD, Checked, Heads, check_chain
from spikeguard_protocol import RunId
from spikeguard_server.cli.commands import DOES_NOT_FIT
from spikeguard_server.jobs.audit_heads import BadHeads, read_heads
from spikeguard_server.store.audit_chain import ChainHead, read_chains, read_plainly, run_names
from spikeguard_server.store.database import database_settings, opened
from spikeguard_server.store.roles import who_can_change
from spikeguard_server.store.tables.core import FLEET, run_key

OF_NO_RUN: Final = "of no run"


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What all entries came to."""

    runs: Mapping[UUID, Checked]
    names: Mapping[UUID, str]
    heads: int | None  # that were held against them; None: none were given
    can_change: list[str]

    @property
    def entries(self) -> int:
        return sum(checked.entries for checked in self.runs.values())

    def name(self, run_id: UUID) -> str:
        """What people call the run."""
        return OF_NO_RUN if run_id == FLEET else self.names.get(run_id, str(run_id))

    def findings(self) -> list[dict[str, Any]]:
        """The first entry that does not fit, of every run that has one."""
        return [
            {
                "run": self.name(run_id), "number": checked.finding.number,
                "fault": checked.finding.fault.value, "reason": TOLD[checked.finding.fault],
            }
            for run_id, checked in self.runs.items()
            if checked.finding is not None
        ]  # fmt: skip


def run(options: Namespace) -> int:
    """Read, compute, compare, and say what does not fit."""
    heads = _heads(options.heads)
    run_id = run_key(RunId.parse(options.of_run)) if options.of_run else None
    with opened(database_settings(options.directory), migrated=False) as engine:
        verdict = _verify(engine, heads, run_id)
    findings = verdict.findings()
    if options.json:
        print(json.dumps(_as_json(verdict, findings)))
    else:
        _tell(verdict, findings)
    return DOES_NOT_FIT if findings else 0


def _heads(place: Path | None) -> list[ChainHead] | None:
    try:
        return None if place is None else read_heads(place)
    except BadHeads as error:
        raise CommandFailed(str(error)) from None


def _verify(engine: sql.Engine, heads: list[ChainHead] | None, run_id: UUID | None) -> AuditVerdict:
    exported = _by_run(heads or [], run_id)
    try:
        with engine.begin() as connection:
            read_plainly(connection)
            return AuditVerdict(
                names=run_names(connection),
                can_change=who_can_change(connection),
                runs=_check(connection, exported, run_id),
                heads=None if heads is None else sum(map(len, exported.values())),
            )
    except ProgrammingError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise CommandFailed(
            f"the audit cannot be read: {reason}. The database has to be at this version's schema "
            "(`spikeguard migrate`), and the role needs SELECT on audit, runs and deleted_runs"
        ) from error


def _by_run(
    heads: Iterable[ChainHead], run_id: UUID | None
) -> dict[UUID, dict[int, frozenset[bytes]]]:
    found: dict[UUID, dict[int, frozenset[bytes]]] = {}
    for head in heads:
        if run_id in (None, head.run_id):
            numbers = found.setdefault(head.run_id, {})
            numbers[head.number] = numbers.get(head.number, frozenset()) | {head.digest}
    return found


def _check(
    connection: sql.Connection, exported: Mapping[UUID, Heads], run_id: UUID | None
) -> dict[UUID, Checked]:
    """Every run that has entries, and every run that had some when a head was exported."""
    found = {
        key: check_chain(entries, exported.get(key, {}))
        for key, entries in read_chains(connection, run_id)
    }
    gone = {key: check_chain((), heads) for key, heads in exported.items() if key not in found}
    return found | gone


def _as_json(verdict: AuditVerdict, findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "fits": not findings, "findings": findings, "runs": len(verdict.runs),
        "entries": verdict.entries, "heads": verdict.heads,
        "roles_that_can_change_it": verdict.can_change,
    }  # fmt: skip


def _tell(verdict: AuditVerdict, findings: list[dict[str, Any]]) -> None:
    for finding in findings:
        say(f"{finding['run']}: entry {finding['number']} {finding['reason']}")
    if not findings:
        say(f"{verdict.entries} entries in {len(verdict.runs)} chains fit their digests.")
    if verdict.heads is None:
        say("No exported heads were given: a chain made anew, or cut at its end, goes unseen.")
    else:
        say(f"{verdict.heads} exported heads were held against them.")
    roles = ", ".join(verdict.can_change) or "none"
    say(f"Roles that can log in and change entries: {roles}.")
