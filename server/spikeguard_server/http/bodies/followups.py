"""Bodies about an incident's follow-ups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from spikeguard_protocol import FollowupState
from spikeguard_server.access.person_names import LONGEST
from spikeguard_server.http.bodies.run_shapes import TIME, Shape, example
from spikeguard_server.store.followups import MAX_TEXT
from spikeguard_server.store.reads.history import Row

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT)]
Owner = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]
FOLLOWUP_EXAMPLE = {
    "number": 2,
    "text": "Look at the data of batches 1,201 to 1,205 (5): bad data is the likely cause.",
    "state": "open",
    "owner": "Ada Lovelace",
    "revision": 3,
    "asked_by": "post-mortem",
    "created_at": TIME,
    "changed_at": TIME,
    "changed_by": "Grace Hopper",
}


class FollowupBody(Shape):
    """Something to be done because of an incident."""

    model_config = example(FOLLOWUP_EXAMPLE)

    number: int = Field(description="from 1, within the incident")
    text: str
    state: FollowupState
    owner: str | None = Field(description="null: nobody's")
    revision: int = Field(description="one more with every change: who changes names it")
    asked_by: str = Field(description="post-mortem, or the person who added it")
    created_at: datetime
    changed_at: datetime
    changed_by: str


class FollowupList(Shape):
    """All follow-ups of an incident, by number."""

    model_config = example({"items": [FOLLOWUP_EXAMPLE]})

    items: list[FollowupBody]


class FollowupWanted(Shape):
    """What a person wants done."""

    model_config = example({"text": "Filter shard 14 out of the mix", "owner": "Ada Lovelace"})

    text: Text = Field(description="what is to be done")
    owner: Owner | None = Field(None, description="whose it is; null: nobody's")


class FollowupChange(Shape):
    """What is to become of a follow-up; what is left out stays as it is."""

    model_config = example({"revision": 3, "state": "done"})

    revision: int = Field(ge=1, le=2**31 - 1, description="that was seen")
    text: Text | None = None
    owner: Owner | None = Field(None, description="whose it is from now on")
    nobody: bool = Field(False, description="it is nobody's from now on")
    state: FollowupState | None = None


def followup_body(row: Row) -> FollowupBody:
    """As it stands now."""
    same = ("number", "text", "state", "owner", "revision", "created_at", "changed_at")
    return FollowupBody(
        **{name: row._mapping[name] for name in same},
        asked_by="post-mortem" if row.rule is not None else row.created_by,
        changed_by=row.changed_by,
    )
