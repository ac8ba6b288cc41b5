"""Tags of a run as its job tells them, each time with an entry in the audit.

Invariants: under the run's lock, and never more of them than `MAX_TAGS`. A change that changes
nothing leaves no entry.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spikeguard_protocol import AttemptStarted
from spikeguard_protocol.identity import MAX_TAGS, TAG_PATTERN, TAGS_FACT
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.run_tags import read_tags, write_tags

MOST_TOLD: Final = 1000  # characters


def tag_as_told(intake: Intake, started: AttemptStarted) -> None:
    """Add the tags that a job gives its run, as far as there is room; what is none is left out."""
    told = started.settings.get(TAGS_FACT, "")[:MOST_TOLD].split(",")
    wanted = [tag for tag in dict.fromkeys(told) if TAG_PATTERN.fullmatch(tag)]
    if not wanted:
        return
    before = read_tags(intake.connection, intake.run_id)
    fresh = [tag for tag in wanted if tag not in before][: max(0, MAX_TAGS - len(before))]
    if fresh:
        write_tags(intake.connection, intake.run_id, fresh)
        audit.append(
            intake.connection, intake.run_id, actor=audit.SERVER, action="tagged",
            subject=str(intake.run.id), before=_listed(before),
            after=_listed([*before, *fresh]), reason=f"told by attempt {intake.attempt.number}",
        )  # fmt: skip


def _listed(tags: Collection[str]) -> str | None:
    return ", ".join(sorted(tags)) or None
