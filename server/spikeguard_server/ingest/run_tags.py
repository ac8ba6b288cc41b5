"""Tags of a run changed by a person or told by its job, each time with an entry in the audit.

Invariants: under the run's lock, and never more of them than `MAX_TAGS`. A change that changes
nothing leaves no entry.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import AttemptStarted, RunId
from spikeguard_protocol.identity import MAX_TAGS, TAG_PATTERN, TAGS_FACT
from spikeguard_server.errors import Unprocessable
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.run_tags import read_tags, write_tags
from spikeguard_server.store.runs import lock_run

MOST_TOLD: Final = 1000  # characters


@dataclass(frozen=True, slots=True)
class TagChange:
    """What is to be changed; a tag of both is removed."""

    add: Collection[str] = ()
    remove: Collection[str] = ()
    reason: str | None = None


def change_tags(connection: sql.Connection, run: RunId, change: TagChange, by: Actor) -> UUID:
    """Change a run's tags; raise `NotFound`, or `Unprocessable` where there would be too many."""
    key = existing_run(connection, run)
    if lock_run(connection, key) is None:  # deleted meanwhile
        existing_run(connection, run)
    before = set(read_tags(connection, key))
    after = (before | set(change.add)) - set(change.remove)
    if len(after) > max(MAX_TAGS, len(before)):
        raise Unprocessable(
            f"Run {run} would have {len(after)} tags; {MAX_TAGS} is the most",
            "Remove some of " + ", ".join(sorted(before)), field="add", limit=MAX_TAGS,
        )  # fmt: skip
    if after != before:
        write_tags(connection, key, after - before, before - after)
        audit.append(
            connection, key, actor=by, action="tagged", subject=str(run),
            before=_listed(before), after=_listed(after), reason=change.reason,
        )  # fmt: skip
    return key


def tag_as_told(intake: Intake, started: AttemptStarted) -> None:
    """Add the tags that a job gives its run, as far as there is room; what is none is left out."""
    told = started.settings.get(TAGS_FACT, "")[:MOST_TOLD].split(",")
    wanted = [tag for tag in dict.fromkeys(told) if TAG_PATTERN.fullmatch(tag)]
    if not wanted:
        return
    before = read_tags(intake.connection, intake.run_id)
    fresh = [tag for tag in wanted if tag not in before][: max(0, MAX_TAGS - len(before))]
    if fresh:
        write_tags(intake.connection, intake.run_id, fresh, ())
        audit.append(
            intake.connection, intake.run_id, actor=audit.SERVER, action="tagged",
            subject=str(intake.run.id), before=_listed(before),
            after=_listed([*before, *fresh]), reason=f"told by attempt {intake.attempt.number}",
        )  # fmt: skip


def _listed(tags: Collection[str]) -> str | None:
    return ", ".join(sorted(tags)) or None
