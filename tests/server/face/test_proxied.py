"""What reverse proxies say of people and of addresses: trusted by the connection alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import Role
from spikeguard_server.settings import Settings, read_settings
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import bearer_of, serving
from tests.server.face.test_links import linked
from tests.server.notify.listener import listening

PROXY: dict[str, Any] = {
    "sign_in_proxies": "127.0.0.2",
    "sign_in_roles": "ml-oncall=operator, ml-leads=admin, staff=viewer, vision=operator@vision",
}
ADA = {"X-Forwarded-Email": "ada@example.org", "X-Forwarded-Groups": "staff, ml-oncall"}


@pytest.fixture(scope="module")
def url(face_url: str) -> Iterator[str]:
    """Another replica of the same fleet, behind a proxy at 127.0.0.2."""
    settings = Settings(database_url=face_url, **PROXY)
    with serving(settings) as found:
        yield found


def browser(url: str, address: str = "127.0.0.2") -> httpx.Client:
    """A browser behind the proxy, or whoever calls from `address`."""
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=url, transport=transport, timeout=120)


def person(client: httpx.Client, live: Live) -> tuple[str | None, str] | None:
    """Who the session of `client` is."""
    secret = client.cookies.get("spikeguard_session")
    if secret is None:
        return None
    with live.bearing(bearer_of(live.engine, secret)) as calls:
        me = calls.get("/v1/me").json()
    return me["name"], me["role"]


def test_whom_the_proxy_has_signed_in_is_in_and_goes_where_they_wanted(
    live: Live, url: str
) -> None:
    wanted = "/confirm/default/gpt/1/1"
    with browser(url) as ada:
        answer = ada.get(wanted, headers=ADA)
        assert answer.headers["location"] == f"/login?next={wanted}"
        entered = ada.get(answer.headers["location"], headers=ADA)
        assert (entered.status_code, entered.headers["location"]) == (303, wanted)
        assert "httponly" in entered.headers["set-cookie"].lower()
        assert person(ada, live) == ("ada@example.org", Role.OPERATOR)
        assert ada.get(wanted, headers=ADA).status_code == 404  # judged, and there is no such run
        again = ada.get("/login", headers=ADA)
        assert again.status_code == 200  # no second session
        assert "ada@example.org" in again.text
        assert ada.post("/logout").status_code == 303
        assert person(ada, live) is None


def test_another_person_at_the_same_browser_is_another_session(live: Live, url: str) -> None:
    with browser(url) as client:
        client.get("/login", headers=ADA)
        client.get("/login", headers={**ADA, "X-Forwarded-Email": "grace@example.org"})
        assert person(client, live) == ("grace@example.org", Role.OPERATOR)


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"X-Forwarded-For": "127.0.0.2"},
        {"X-Real-IP": "127.0.0.2", "Forwarded": "for=127.0.0.2"},
    ],
    ids=["as it is", "for", "others"],
)
def test_a_header_from_anywhere_else_counts_for_nothing(
    live: Live, url: str, forged: dict[str, str]
) -> None:
    """Also where a caller on the server's own machine claims to speak for the proxy."""
    for address in ("127.0.0.1", "127.0.0.3"):
        with browser(url, address) as client:
            answer = client.get("/login", headers={**ADA, **forged})
            assert answer.status_code == 200
            assert person(client, live) is None


def test_a_header_that_comes_twice_counts_for_nothing(live: Live, url: str) -> None:
    """One of them is not the proxy's."""
    with browser(url) as client:
        twice = [*ADA.items(), ("X-Forwarded-Email", "root@example.org")]
        assert client.get("/login", headers=twice).status_code == 200
        assert person(client, live) is None


def test_who_is_in_no_group_that_is_let_in_is_refused(live: Live, url: str) -> None:
    with browser(url) as client:
        answer = client.get("/login", headers={**ADA, "X-Forwarded-Groups": "guests"})
        assert answer.status_code == 403
        assert "none of the groups" in answer.text
        assert person(client, live) is None


def test_a_group_of_one_project_signs_in_for_that_one(live: Live, url: str) -> None:
    with browser(url) as client:
        for _ in range(2):
            client.get("/login", headers={**ADA, "X-Forwarded-Groups": "staff, vision"})
        assert person(client, live) == ("ada@example.org", Role.OPERATOR)
        assert client.get("/inbox", headers=ADA).status_code == 200
        assert client.get("/act/audio/gpt", headers=ADA).status_code == 403


def test_the_api_takes_no_header_for_a_token(url: str) -> None:
    with browser(url) as client:
        assert client.get("/v1/runs", headers=ADA).status_code == 401


def test_an_admin_ends_every_such_session_at_once(live: Live, url: str) -> None:
    with browser(url) as lead, live.client(Role.ADMIN) as admin:
        lead.get("/login", headers={**ADA, "X-Forwarded-Groups": "ml-leads"})
        assert person(lead, live) == ("ada@example.org", Role.ADMIN)
        tokens = admin.get("/v1/tokens", params={"limit": 1000}).json()["items"]
        [parent] = [t for t in tokens if "proxy" in (t["name"] or "") and t["role"] == "admin"]
        assert admin.delete(f"/v1/tokens/{parent['id']}").status_code == 204
        with live.bearing(bearer_of(live.engine, lead.cookies["spikeguard_session"])) as calls:
            assert calls.get("/v1/me").status_code == 401


LEAD = {"X-Forwarded-Email": "lead@example.org", "X-Forwarded-Groups": "ml-leads"}


@pytest.mark.parametrize(
    ("groups", "path", "left"),
    [
        ("staff", "/login", ("lead@example.org", Role.VIEWER)),
        ("staff", "/inbox", None),
        ("guests", "/login", None),
    ],
)
def test_a_lower_role_ends_the_sessions_and_tokens_of_the_higher_one(
    live: Live, url: str, groups: str, path: str, left: tuple[str, str] | None
) -> None:
    """At the next call that comes through the proxy, in whichever browser."""
    with browser(url) as phone, browser(url) as desk:
        phone.get("/login", headers=LEAD)
        desk.get("/login", headers=LEAD)
        with live.bearing(bearer_of(live.engine, desk.cookies["spikeguard_session"])) as calls:
            made = calls.post("/v1/tokens", json={"role": "agent", "name": "job"})
        assert made.status_code == 201, made.text
        phone.get(path, headers={**LEAD, "X-Forwarded-Groups": groups})
        for secret in (desk.cookies["spikeguard_session"], made.json()["token"]):
            with live.bearing(bearer_of(live.engine, secret)) as calls:
                assert calls.get("/v1/me").status_code == 401
        if left is not None:
            assert person(phone, live) == left


def test_a_lower_role_decides_nothing_in_its_own_name_by_a_link(
    live: Live, url: str, job: Job
) -> None:
    """The page of a link needs no token, and looks who is signed in: as the proxy says it now."""
    with listening() as listener, browser(url) as phone:
        path = linked(live, job, listener)
        phone.get("/login", headers=LEAD)
        session = phone.cookies["spikeguard_session"]
        shown = phone.get(path, headers=LEAD).text
        assert "lead@example.org" in shown
        [key] = re.findall(r'name="key" value="([0-9a-f]+)"', shown)
        lower = {**LEAD, "X-Forwarded-Groups": "staff"}
        yes = phone.post(path, headers=lower, data={"verdict": "approve", "key": key})
        assert yes.status_code == 422  # nobody is signed in any more, and no name was typed
        assert "Your name" in yes.text
        assert job.incident()["proposal"]["state"] == "proposed"
    with live.bearing(session) as calls:
        assert calls.get("/v1/me").status_code == 401


def test_without_a_named_proxy_no_header_counts(live: Live) -> None:
    with browser(live.url) as client:
        assert client.get("/login", headers=ADA).status_code == 200
        assert person(client, live) is None


@pytest.mark.parametrize(
    ("proxies", "roles", "variable"),
    [
        ("10.0.0.0/8", "", "ROLES"),
        ("", "*=viewer=1", "ROLES"),
        ("10.0.0.1", "*=agent", "ROLES"),
        ("proxy.example", "*=viewer", "PROXIES"),
    ],
)
def test_a_setting_that_lets_in_nobody_or_anybody_is_an_error(
    proxies: str, roles: str, variable: str
) -> None:
    found = {"SPIKEGUARD_SIGN_IN_PROXIES": proxies, "SPIKEGUARD_SIGN_IN_ROLES": roles}
    with pytest.raises(SettingError) as refused:
        read_settings(found)
    assert refused.value.field.endswith(variable)
    good = read_settings({"SPIKEGUARD_SIGN_IN_PROXIES": "10.0.0.1, fd00::/8",
                          "SPIKEGUARD_SIGN_IN_ROLES": "*=viewer"})  # fmt: skip
    assert replace(good, sign_in_proxies="", sign_in_roles="") == Settings()


@pytest.fixture
def ingress(face_url: str) -> Iterator[str]:
    """Another replica, behind an ingress at 127.0.0.2 that signs nobody in."""
    settings = Settings(database_url=face_url, trusted_proxies="127.0.0.2")
    with serving(settings) as found:
        yield found


def test_to_be_trusted_with_an_address_is_not_to_be_trusted_with_a_person(
    live: Live, ingress: str
) -> None:
    with browser(ingress) as client:
        assert client.get("/login", headers=ADA).status_code == 200
        assert person(client, live) is None
