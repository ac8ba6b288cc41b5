"""Tags of a run: added and removed by whoever decides."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from spikeguard_protocol.identity import MAX_TAGS, TAG_PATTERN
from spikeguard_server.errors import NotFound
from spikeguard_server.http.bodies.run_shapes import ReasonGiven, RunBody, Shape, example
from spikeguard_server.http.bodies.runs import run_body
from spikeguard_server.http.dependencies import CallerDep, RunDep, ServicesDep, person_of
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.ingest.run_tags import TagChange, change_tags
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["runs"])
_NO_RUN = NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")
Tag = Annotated[str, StringConstraints(pattern=f"^{TAG_PATTERN.pattern}$")]


class TagsWanted(Shape):
    """Tags to add and to remove; one of both is removed."""

    model_config = example({"add": ["sweep-3", "lr=3e-4"], "remove": ["draft"]})

    add: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS)
    remove: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS)
    reason: ReasonGiven = None


@router.post(
    "/v1/runs/{project}/{name}/tags", summary="Change a run's tags", response_model=RunBody,
    response_class=JsonReply, responses=refusals(_NO_RUN),
)  # fmt: skip
def post_tags(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: TagsWanted
) -> JsonReply:
    """At most 20 a run. What is there already, or is not there, changes nothing."""
    change = TagChange(wanted.add, wanted.remove, wanted.reason)
    with services.engine.begin() as connection:
        key = change_tags(connection, run, change, person_of(caller))
        row = read_run(connection, key, services.silent_after)
        return JsonReply(run_body(row, services.silent_after))
