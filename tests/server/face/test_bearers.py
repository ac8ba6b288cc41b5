"""A token that was good a moment ago is judged again with every message it comes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spikeguard_protocol import Role, encode
from spikeguard_server.grants import Grant

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live


def test_a_revoked_token_works_for_not_one_message_more(live: Live, job: Job) -> None:
    secret = live.token(Grant(Role.AGENT))
    with live.bearing(secret) as agent, live.client(Role.ADMIN) as admin:
        message = encode(job.message())
        assert agent.post("/v1/messages", content=message).status_code == 200
        tokens = admin.get("/v1/tokens", params={"limit": 1}).json()["items"]
        assert admin.delete(f"/v1/tokens/{tokens[0]['id']}").status_code == 204
        refused = agent.post("/v1/messages", content=encode(job.message()))
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "not_signed_in"
    job.sequence -= 1
    assert job.send().sequence == job.sequence


def test_a_token_of_another_project_stores_nothing_however_often_it_was_good(
    live: Live, job: Job
) -> None:
    with live.bearing(live.token(Grant(Role.AGENT, project="mine"))) as agent:
        for _ in range(2):
            refused = agent.post("/v1/messages", content=encode(job.message()))
            assert refused.status_code == 403
            job.sequence -= 1
    assert job.send().sequence == job.sequence
