"""Commands: written under the run's lock, read as `CommandRow` by everybody.

A command moves along the domain's table of moves and takes its audit entry with it. Revisions are
only ever added. Commands of the run itself have the number `RUN_ITSELF` in place of an incident's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

import sqlalchemy as sql
from psycopg.types.json import Jsonb

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import (
    COMMAND_MOVES,
    EXECUTED,
    WAITING,
    CommandEvent,
    next_state,
)
from spikeguard_core.policy.rules import Proposal
from spikeguard_core.policy.settings import Policy, PolicyScope
from spikeguard_protocol import (
    OWN_RULE,
    RUN_ITSELF,
    Action,
    CommandId,
    CommandState,
    IncidentId,
    RunId,
    ScaleLr,
    Verb,
    from_json,
    to_json,
    verb_of,
)
from spikeguard_protocol.phrases import paragraphs
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import NotFound
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.store import audit
from spikeguard_server.store.engine import Prepared, Statement, row_as, seconds, write
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables.core import (
    attempts,
    audit as audit_table,
    command_revisions,
    commands,
    incidents,
    run_key,
    runs,
)

MOST_REVISIONS: Final = 20  # the newest of a command, which every list that names it carries
EMERGENCY_RULE: Final = "the emergency rule of the job"
PROPOSE: Final = "propose"  # the audit's word for it
Key = tuple[UUID, int]  # run, incident
_C, _R = commands.c, runs.c
_ORDER: Final = (_C.incident, _C.number)
LATELY: Final = timedelta(days=2)  # other commands of the run that the policy counts
# As the index of unfinished commands says it.
UNFINISHED: Final = sql.text("commands.state IN ('proposed', 'approved', 'delivered')")
# Whether a command still waits for somebody's decision, apart from the steps it may wait.
IS_WAITING: Final = sql.and_(
    _C.state.in_([state.value for state in WAITING]), _C.expires_at > sql.func.now()
)
# Whether it waits and can still be approved, where its run stands.
IN_TIME: Final = sql.and_(
    IS_WAITING,
    _C.expires_at_step.is_(None) | (_C.expires_at_step > sql.func.coalesce(_R.last_step, 0)),
)
# Whether a row of `runs` has a command that does.
RUN_WAITS: Final = sql.exists().where(_C.run_id == _R.run_id, IN_TIME).correlate(runs)
COMMANDS: Final = (
    sql.select(
        commands, _R.project, _R.name, attempts.c.id.label("attempt_id"),
        seconds(_C.expires_at - sql.func.now()).label("expires_in_s"),
    )
    .join(runs, _R.run_id == _C.run_id)
    .join(attempts, (attempts.c.run_id == _C.run_id) & (attempts.c.number == _C.attempt))
)  # fmt: skip


def _row(row: Row) -> CommandRow:
    return row_as(
        CommandRow, row,
        run=RunId(row.project, row.name), action=from_json(Action, row.arguments, "arguments"),
        state=CommandState(row.state), policy_scope=PolicyScope(row.policy_scope),
    )  # fmt: skip


def command_rows(connection: sql.Connection, query: sql.Select[Any]) -> list[CommandRow]:
    """The commands that `query`, made of `COMMANDS`, asks for."""
    return list(map(_row, connection.execute(query)))


_MINE: Final = COMMANDS.where(_C.run_id == sql.bindparam("key")).order_by(*_ORDER)
_OF_INCIDENT: Final = _C.incident == sql.bindparam("of")
_ONE: Final = Prepared(_MINE.where(_OF_INCIDENT, _C.number == sql.bindparam("which")))
_UNENDED: Final = Prepared(_MINE.where(UNFINISHED))
_OF_ONE: Final = Prepared(_MINE.where(_OF_INCIDENT))
_LATE: Final = _C.proposed_at > sql.bindparam("since")
_ABOUT: Final = Prepared(_MINE.where(sql.or_(_OF_INCIDENT, _LATE, UNFINISHED)))


def read_command(connection: sql.Connection, id: CommandId) -> CommandRow:
    """One command; raise `NotFound` if there is none."""
    run, incident = id.incident.run, id.incident.number
    found = _ONE.rows(connection, key=run_key(run), of=incident, which=id.number)
    if not found:
        raise NotFound(f"There is no command {id}", f"`spikeguard show {run}` lists them")
    return _row(found[0])


def unfinished_commands(connection: sql.Connection, run_id: UUID) -> list[CommandRow]:
    """Proposed, approved and delivered commands of the run, oldest first."""
    return list(map(_row, _UNENDED.rows(connection, key=run_id)))


def commands_of(connection: sql.Connection, run_id: UUID, incident: int) -> list[CommandRow]:
    """Every command of one incident, oldest first."""
    return list(map(_row, _OF_ONE.rows(connection, key=run_id, of=incident)))


def commands_waiting(connection: sql.Connection, keys: Collection[Key]) -> Mapping[Key, CommandRow]:
    """The newest command of each incident that can still be approved."""
    if not keys:
        return {}
    mine = COMMANDS.where(sql.tuple_(_C.run_id, _C.incident).in_(keys), IN_TIME)
    found = command_rows(connection, mine.order_by(*_ORDER))
    return {(row.run_id, row.incident): row for row in found}


def list_run_commands(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[CommandRow], str | None]:
    """What was ordered of a run itself, newest first, and the cursor of the next page."""
    mine = COMMANDS.where(_C.run_id == run_id, _C.incident == RUN_ITSELF)
    found, more = read_page(connection, mine, (_C.number,), page)
    return [_row(row) for row in found], more


def command_revisions_of(
    connection: sql.Connection, rows: Sequence[CommandRow]
) -> Mapping[tuple[UUID, int, int], list[Row]]:
    """By run, incident and number, the newest of what each said before."""
    c, found = command_revisions.c, dict[tuple[UUID, int, int], list[Row]]()
    if not rows:
        return found
    mine = (_C.run_id == c.run_id) & (_C.incident == c.incident) & (_C.number == c.command)
    keys = [(row.run_id, *row.key) for row in rows]
    query = (
        sql.select(command_revisions)
        .join(commands, mine)
        .where(sql.tuple_(c.run_id, c.incident, c.command).in_(keys))
        .where(c.number > _C.revision - MOST_REVISIONS)
    )
    for row in connection.execute(query.order_by(c.number)):
        found.setdefault((row.run_id, row.incident, row.command), []).append(row)
    return found


def action_at(connection: sql.Connection, command: CommandRow, revision: int) -> Action | None:
    """What `revision` of `command` proposed; None where it has no such revision."""
    c = command_revisions.c
    mine = (c.run_id == command.run_id) & (c.incident == command.incident)
    found = connection.scalar(
        sql.select(c.arguments).where(mine, c.command == command.number, c.number == revision)
    )
    return None if found is None else cast(Action, from_json(Action, found, "arguments"))


def commands_about(
    connection: sql.Connection, run_id: UUID, now: datetime, incident: int | None = None
) -> list[CommandRow]:
    """Every command of the run that counts for the next one: those of `LATELY`, those that are not
    finished, and where `incident` is given all of its own."""
    found = _ABOUT.rows(connection, key=run_id, since=now - LATELY, of=incident)
    return list(map(_row, found))


def due_escalations(connection: sql.Connection, run_id: UUID, now: datetime) -> list[CommandRow]:
    """Commands of the run of which the next level is to be told."""
    return command_rows(connection, COMMANDS.where(_C.run_id == run_id, *late_answer(now)))


def late_answer(now: datetime) -> tuple[sql.ColumnElement[bool], ...]:
    """Whether nobody answered in time; an incident that somebody has acknowledged waits for
    them."""
    waits = _C.state.in_([state.value for state in WAITING])
    i = incidents.c
    acknowledged = sql.exists().where(
        i.run_id == _C.run_id, i.number == _C.incident, i.acknowledged_at.is_not(None)
    )
    return _C.escalates_at <= now, waits, ~acknowledged


def set_escalation(
    connection: sql.Connection, command: CommandRow, level: int, escalates_at: datetime | None
) -> None:
    """`level` is told of what is due; the next at `escalates_at`, or never."""
    write(connection, _update(command, {"escalation": level, "escalates_at": escalates_at}))


def create_command(
    connection: sql.Connection,
    run: RunRow,
    incident: int,
    action: Action,
    *,
    attempt: int,
    reason: str,
    policy: Policy,
    now: datetime,
    expires_at: datetime,
    expires_at_step: int | None,
    cause: str | None = None,
    person: Actor | None = None,
    escalates_at: datetime | None = None,
) -> CommandRow:
    """Propose `action` as the next command of the incident, or of the run itself; `person`: who
    orders it, if no policy."""
    number = _next_number(connection, run.run_id, incident)
    told = _revision(action, reason, policy)
    _insert(
        connection,
        run_id=run.run_id, incident=incident, number=number, revision=1, cause=cause,
        state=CommandState.PROPOSED.value, attempt=attempt,
        expires_at=expires_at, expires_at_step=expires_at_step, escalates_at=escalates_at,
        proposed_at=now,
        automatic=False, proposed_by=person, **told,
    )  # fmt: skip
    command = read_command(connection, CommandId(IncidentId(run.id, incident), number))
    words = f"{verb_of(action)}: {reason}"
    _record(connection, command, PROPOSE, person or by_policy(policy), command.state, words)
    write(connection, _revised(command, now))
    return command


def record_own_rule(
    connection: sql.Connection, run: RunRow, number: int, action: ScaleLr, attempt: int,
    policy: Policy, now: datetime,
) -> CommandRow:  # fmt: skip
    """What the job began by its emergency rule, on its way like an order that was delivered."""
    reason = "so many updates in a row were left out as its settings name"
    _insert(
        connection,
        run_id=run.run_id, incident=RUN_ITSELF, number=number, revision=1, attempt=attempt,
        state=CommandState.DELIVERED.value, expires_at=now, proposed_at=now, decided_at=now,
        automatic=False, proposed_by=EMERGENCY_RULE, decided_by=EMERGENCY_RULE,
        **_revision(action, reason, policy),
    )  # fmt: skip
    return read_command(connection, CommandId(IncidentId(run.id, RUN_ITSELF), number))


def _insert(connection: sql.Connection, **columns: Any) -> None:
    values = ", ".join(f"%({name})s" for name in columns)
    write(connection, (f"INSERT INTO commands ({', '.join(columns)}) VALUES ({values})", columns))


def own_rule_acts(
    connection: sql.Connection, run_id: UUID, first_step: int, until: datetime | None
) -> list[CommandRow]:
    """What the job did by its emergency rule from `first_step` on, until then, oldest first."""
    mine = COMMANDS.where(_C.run_id == run_id, _C.incident == RUN_ITSELF, _C.number >= OWN_RULE)
    mine = mine.where(_C.applied_step >= first_step, _C.state.in_(EXECUTED))
    mine = mine if until is None else mine.where(_C.finished_at <= until)
    return command_rows(connection, mine.order_by(_C.number).limit(MOST_REVISIONS))


def cures_applied(connection: sql.Connection, run_id: UUID) -> list[CommandRow]:
    """What the job carried out that changes the training, in the order in which it did."""
    mine = COMMANDS.where(_C.run_id == run_id, _C.state.in_(EXECUTED))
    return command_rows(connection, mine.where(_C.verb.in_(CURES)).order_by(_C.finished_at))


def _next_number(connection: sql.Connection, run_id: UUID, incident: int) -> int:
    """Those of the run itself are counted in the audit, which outlives a deleted run: a job's
    journal would take a second command of one number for the first."""
    a, newest = audit_table.c, sql.func.max(_C.number)
    query = sql.select(newest).where(_C.run_id == run_id, _C.incident == incident)
    if incident == RUN_ITSELF:
        mine = (a.run_id == run_id) & (a.action == PROPOSE) & (a.incident == RUN_ITSELF)
        query = sql.select(sql.func.count()).where(mine)
    return int(connection.scalar(query) or 0) + 1


def revise_command(
    connection: sql.Connection, command: CommandRow, proposal: Proposal, policy: Policy,
    now: datetime,
) -> CommandRow:  # fmt: skip
    """Change what is proposed; whoever saw the old revision has to look again. It expires when the
    first revision does."""
    assert proposal.action is not None
    steps = (command.expires_at_step, proposal.expires_at_step)
    columns = {
        "revision": command.revision + 1, "cause": proposal.cause,
        "expires_at_step": min((step for step in steps if step is not None), default=None),
        **_revision(proposal.action, proposal.reason, policy),
    }  # fmt: skip
    write(connection, _update(command, columns))
    told_reason = f"{verb_of(proposal.action)}: {proposal.reason}"
    move_command(
        connection, command, CommandEvent.REVISE, told_reason, now, actor=by_policy(policy)
    )
    revised = read_command(connection, command.id)
    write(connection, _revised(revised, now))
    return revised


def _revision(action: Action, reason: str, policy: Policy) -> dict[str, Any]:
    """The columns that a command and its revisions share."""
    return {
        "verb": verb_of(action).value, "arguments": Jsonb(to_json(action)),
        "reason": reason,
        "policy_version": policy.version, "policy_scope": policy.scope.value,
    }  # fmt: skip


_REVISED: Final = """
INSERT INTO command_revisions (run_id, incident, command, number, at, verb, arguments, reason,
                               policy_version, policy_scope)
SELECT run_id, incident, number, revision, %s, verb, arguments, reason, policy_version, policy_scope
FROM commands WHERE run_id = %s AND incident = %s AND number = %s
"""


def _revised(command: CommandRow, now: datetime) -> Statement:
    """The statement that keeps what the newest revision of a command says."""
    return _REVISED, (now, command.run_id, *command.key)


def by_policy(policy: Policy) -> Actor:
    """The actor where a policy acts."""
    return Actor(policy.name, ActorKind.POLICY)


def move_command(
    connection: sql.Connection, command: CommandRow, event: CommandEvent, reason: str,
    now: datetime, *, actor: str = audit.SERVER, **columns: Any,
) -> None:  # fmt: skip
    """Let `event` happen to the command and write `columns` with it; raise the domain's
    `IllegalMove` if it cannot."""
    state = next_state("command", COMMAND_MOVES, command.state, event)
    columns |= dict.fromkeys(_STAMPS.get(event, ()), now)
    if event in _ENDS:
        columns["end_reason"] = reason
    elif event is CommandEvent.JUDGE:
        columns["judgement"] = reason
    write(connection, _update(command, {"state": state.value, **columns}))
    _record(connection, command, event.value, actor, state, reason)


def _update(command: CommandRow, columns: Mapping[str, Any]) -> Statement:
    changed = " = %s, ".join(columns) + " = %s"
    which = "WHERE run_id = %s AND incident = %s AND number = %s"
    values = (*columns.values(), command.run_id, *command.key)
    return f"UPDATE commands SET {changed} {which}", values


def correct_result(connection: sql.Connection, command: CommandRow, actor: str, said: str) -> None:
    """Say anew what came of a command that was carried out, unless that is known."""
    if command.result != said:
        write(connection, _update(command, {"result": said}))
        _record(connection, command, "correct", actor, command.state, said)


def _record(
    connection: sql.Connection, command: CommandRow, action: str, actor: str, after: CommandState,
    reason: str,
) -> None:  # fmt: skip
    audit.append(
        connection, command.run_id, actor=actor, action=action, subject=str(command.id),
        incident=command.incident, command=command.number,
        before=None if action == PROPOSE else command.state.value, after=after.value,
        reason=reason, told=command.verb is not Verb.WATCH,
    )  # fmt: skip


_ENDS: Final = (
    CommandEvent.SUPERSEDE, CommandEvent.EXPIRE, CommandEvent.HEAL, CommandEvent.WITHDRAW,
    CommandEvent.END_RUN, CommandEvent.RESTART, CommandEvent.HALT,
)  # fmt: skip
_STAMPS: dict[CommandEvent, tuple[str, ...]] = {
    CommandEvent.APPROVE: ("decided_at",),
    CommandEvent.REJECT: ("decided_at", "finished_at"),
    CommandEvent.DELIVER: ("delivered_at",),
    **dict.fromkeys(
        (*_ENDS, CommandEvent.REFUSE, CommandEvent.APPLY, CommandEvent.FAIL, CommandEvent.LOSE),
        ("finished_at",),
    ),
}


def end_command(
    connection: sql.Connection, command: CommandRow, event: CommandEvent, reason: str,
    now: datetime, step: int | None,
) -> None:  # fmt: skip
    """Let `event` end the command, without anybody's act. Where nobody had decided in time, the
    `step` that the run stood at is kept."""
    late = event is CommandEvent.EXPIRE and command.state in WAITING
    first = next(iter(paragraphs(reason)), "")  # of what replaces it the rest stands there
    columns: dict[str, Any] = {"decided_step": step} if late else {}
    move_command(connection, command, event, first, now, **columns)
