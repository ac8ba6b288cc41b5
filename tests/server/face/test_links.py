"""Links with which whoever holds them decides on one proposal, once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from tests.server.notify.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.face.conftest import Job, Live

LABEL = "Decide without signing in"
SECRET = "a secret of more than sixteen signs"


def linked(live: Live, job: Job, listener: Listener, **rules: Any) -> str:
    """The path of the link in the message that tells the job's proposal."""
    target = {"url": f"{listener.url}/hook", "secret": SECRET}
    body = {"kind": "webhook", "target": target, "runs": [job.run], "links": True, **rules}
    with live.client(Role.ADMIN) as admin:
        assert admin.put(f"/v1/channels/default/to-{job.run}", json=body).status_code == 200
    job.spike()
    shown = job.incident()["proposal"]

    def told(messages: list[Any]) -> bool:
        proposals = [m["incident"]["proposal"] for m in messages if m["incident"]]
        return any(
            p and (p["command"], p["revision"]) == (shown["id"], shown["revision"])
            for p in proposals
        )

    listener.wait_for(told)
    link: str = listener.received[-1].json()["links"][LABEL]
    assert link.startswith(live.url)
    return link.removeprefix(live.url)


def command_of(job: Job) -> dict[str, Any]:
    found: list[dict[str, Any]] = job.incident()["commands"]
    return next(entry for entry in reversed(found) if entry["verb"] == "rollback")


def test_a_link_leads_to_a_page_and_looking_changes_nothing(
    live: Live, job: Job, listener: Listener
) -> None:
    path = linked(live, job, listener)
    with live.client() as anybody:
        pages = [anybody.get(path) for _ in range(3)]
        assert {page.status_code for page in pages} == {200}
        assert "Your name" in pages[0].text
        assert "Approve" in pages[0].text
        assert pages[0].headers["referrer-policy"] == "no-referrer"
        assert command_of(job)["state"] == "proposed"
        nameless = anybody.post(path, data={"verdict": "approve"})
        assert nameless.status_code == 422
        assert command_of(job)["state"] == "proposed"
        done = anybody.post(path, data={"verdict": "approve", "name": "Ada <b>"})
        assert done.status_code == 303
        assert (command_of(job)["state"], command_of(job)["decided_by"]) == (
            "approved",
            "Ada <b> (by a link)",
        )
        assert "Approved by Ada &lt;b&gt;" in anybody.get(path).text
        again = anybody.post(path, data={"verdict": "reject", "reason": "no", "name": "Eve"})
        assert again.status_code == 409
        assert "used by Ada" in again.text
    with live.client(Role.VIEWER) as viewer:
        audit = viewer.get(f"{job.path}/audit").json()["items"]
    [entry] = [entry for entry in audit if entry["action"] == "approve" and "Ada" in entry["actor"]]
    assert f"by a link of channel to-{job.run} from 127.0.0.1" in entry["reason"]


def test_who_is_signed_in_decides_in_their_own_name(
    live: Live, job: Job, listener: Listener
) -> None:
    path = linked(live, job, listener, person="Grace Hopper")
    with live.browser(live.session("Ada")) as browser:
        shown = browser.get(path).text
        assert "the name of <b>Ada</b>" in shown
        form = {"verdict": "reject", "reason": "we wait"}
        for foreign in ({}, {"key": "0" * 64}):  # as another page of the host would send it
            assert browser.post(path, data=form | foreign).status_code == 403
        assert command_of(job)["state"] == "proposed"
        form["key"] = re.findall(r'name="key" value="([0-9a-f]+)"', shown)[0]
        assert browser.post(path, data=form).status_code == 303
    assert (command_of(job)["state"], command_of(job)["decided_by"]) == ("rejected", "Ada")


def test_a_channel_that_asks_for_no_links_gets_none(
    live: Live, job: Job, listener: Listener
) -> None:
    with pytest.raises(KeyError):
        linked(live, job, listener, links=False)


def test_a_link_that_was_changed_is_worth_nothing(
    live: Live, job: Job, new_job: Callable[[str], Job], listener: Listener
) -> None:
    another = new_job("of-another-link")
    path = linked(live, job, listener)
    run, _, secret = path.removeprefix("/approve/").partition("-")
    other = linked(live, another, listener).removeprefix("/approve/").partition("-")
    for changed in (
        f"{run}-{secret[:-1]}{'b' if secret[-1] == 'a' else 'a'}",
        f"{run}-{secret[:-1]}",
        f"{run}-{other[2]}",
        f"{other[0]}-{secret}",
        f"{run}{secret}",
    ):
        yes = {"verdict": "approve", "name": "Eve"}
        with live.client() as anybody:
            refused = anybody.post(f"/approve/{changed}", data=yes)
        assert (refused.status_code, "not made by this server" in refused.text) == (403, True)
    assert command_of(job)["state"] == command_of(another)["state"] == "proposed"


def test_of_a_link_the_database_holds_no_more_than_a_hash(
    live: Live, job: Job, listener: Listener
) -> None:
    secret = linked(live, job, listener).partition("-")[2]
    with live.engine.connect() as connection:
        rows = connection.execute(sql.text("select * from approval_links")).all()
    assert rows
    assert secret not in str(rows)


def test_a_link_ends_with_its_time(live: Live, job: Job, listener: Listener) -> None:
    path = linked(live, job, listener)
    with live.engine.begin() as connection:
        past = "update approval_links set expires_at = now() - interval '1 second'"
        connection.execute(sql.text(past))
    with live.client() as anybody:
        for answer in (anybody.get(path), anybody.post(path, data={"verdict": "approve"})):
            assert (answer.status_code, "has expired" in answer.text) == (403, True)
    assert command_of(job)["state"] == "proposed"


@pytest.mark.parametrize("text", ["x" * 40, "é" * 30, "a.b" * 20, ".." * 20])
def test_a_guessed_link_shows_a_calm_page(live: Live, text: str) -> None:
    with live.client() as anybody:
        for answer in (anybody.get(f"/approve/{text}"), anybody.post(f"/approve/{text}")):
            assert answer.status_code == 403
            assert "not made by this server" in answer.text
