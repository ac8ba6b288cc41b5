"""Sign-in by OIDC at a provider that may lie, be slow or be gone: what it says is not believed
until all of it is right, and tokens work as ever."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import sqlalchemy as sql
from joserfc.jwk import KeySet, RSAKey

from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.identity.permissions import (
    Access,
    accesses_of,
    best_access,
    read_accesses,
)
from spikeguard_server.settings import Settings, read_settings
from spikeguard_server.store.engine import open_engine
from tests.server.conftest import Databases
from tests.server.face.serving import bearer_of, serving
from tests.server.oidc.lying import CLIENT_ID, Claims, Liar, lying, new_key

ROLES = "ml-oncall=operator, ml-leads=admin, vision=operator@vision"


@dataclass
class Desk:
    """A server whose people sign in at `liar`."""

    url: str
    liar: Liar
    engine: sql.Engine

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def begin(self, browser: httpx.Client, **asked: Any) -> str:
        """Where the browser is sent."""
        answer = browser.get("/login/oidc", params=asked)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def finish(self, browser: httpx.Client, code: str, state: str, **more: str) -> httpx.Response:
        said = {"code": code, "state": state, **more}
        return browser.get("/login/oidc/callback", params=said)

    def sign_in(self, browser: httpx.Client, **asked: Any) -> httpx.Response:
        return self.finish(browser, *self.liar.code(self.begin(browser, **asked)))

    def me(self, browser: httpx.Client) -> Any:
        secret = bearer_of(self.engine, browser.cookies.get("spikeguard_session") or "none")
        return browser.get("/v1/me", headers={"Authorization": f"Bearer {secret}"}).json()

    def bearing(self, browser: httpx.Client) -> httpx.Client:
        secret = bearer_of(self.engine, browser.cookies["spikeguard_session"])
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120)

    def revoked(self) -> int:
        query = "select count(*) from audit where action = 'token.revoked'"
        with self.engine.connect() as connection:
            return int(connection.execute(sql.text(query)).scalar_one())


def settings_of(url: str, liar: Liar, **more: Any) -> Settings:
    return Settings(
        database_url=url, oidc_issuer=liar.issuer, oidc_client_id=CLIENT_ID, sign_in_roles=ROLES,
        **more,
    )  # fmt: skip


@pytest.fixture(scope="session")
def oidc_url(databases: Databases) -> str:
    return databases.make("oidc")


@pytest.fixture
def desk(oidc_url: str) -> Iterator[Desk]:
    with lying() as liar, serving(settings_of(oidc_url, liar)) as url:
        engine = open_engine(Settings(database_url=oidc_url))
        yield Desk(url, liar, engine)
        engine.dispose()


def test_whom_the_provider_signs_in_is_in_and_the_record_says_how_they_are_known(
    desk: Desk,
) -> None:
    with desk.browser() as ada:
        assert "Sign in at 127.0.0.1" in ada.get("/login").text
        address = desk.begin(ada, next="/confirm/default/gpt/1/1")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == "http://127.0.0.1:8000/login/oidc/callback"
        assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) == 43
        answer = desk.finish(ada, *desk.liar.code(address))
        assert (answer.status_code, answer.headers["location"]) == (303, "/confirm/default/gpt/1/1")
        session = next(c for c in answer.headers.get_list("set-cookie") if "_session=" in c)
        assert "HttpOnly" in session
        me = desk.me(ada)
        assert (me["name"], me["role"], me["project"]) == (desk.liar.ada, "operator", None)
        assert 11.9 * 3600 < me["expires_in_s"] <= 12 * 3600
        query = "select actor, known_by, after from audit where after like '%by OIDC'"
        with desk.engine.connect() as connection:
            [*_, opened] = connection.execute(sql.text(query)).all()
        assert tuple(opened) == (desk.liar.ada, "oidc", f"operator, {desk.liar.ada}, by OIDC")
        assert ada.post("/logout").status_code == 303
        assert "error" in desk.me(ada)


WRONG: dict[str, Claims] = {
    "issuer": {"iss": "https://evil.example"},
    "no issuer": {"iss": None},
    "audience": {"aud": "another"},
    "several audiences": {"aud": [CLIENT_ID, "another"]},
    "authorised party": {"azp": "another"},
    "nonce": {"nonce": "another"},
    "nonce among others": {"nonce": ["another"]},
    "no nonce": {"nonce": None},
    "expired": {"exp": 1},
    "no end": {"exp": None},
    "an end that is no time": {"exp": "tomorrow"},
    "issued in the future": {"iat": 2**40, "exp": 2**41},
    "no subject": {"sub": None},
    "empty subject": {"sub": ""},
    "no name": {"email": None},
    "unverified address": {"email_verified": False},
    "unverified address in words": {"email_verified": "false"},
    "a machine's name": {"email": "server"},
    "a name with an escape": {"email": "ada\x1b[2J@example.org"},
}


def test_a_token_of_which_anything_is_wrong_signs_nobody_in(desk: Desk) -> None:
    for what, claims in WRONG.items():
        desk.liar.claims = claims
        with desk.browser() as browser:
            answer = desk.sign_in(browser)
            assert answer.status_code in (403, 422), (what, answer.text)
            assert "spikeguard_session" not in browser.cookies, what
            assert "\x1b" not in answer.text


def test_only_a_signature_by_a_key_of_the_provider_counts(desk: Desk) -> None:
    desk.liar.signs_with = new_key("first")  # the right name, another key
    with desk.browser() as browser:
        assert "bad signature" in desk.sign_in(browser).text
    desk.liar.description = {"id_token_signing_alg_values_supported": ["none", "HS256", "RS256"]}
    public = RSAKey.import_key(desk.liar.keys.keys[0].as_dict(private=False)).as_pem(private=False)
    for algorithm in ("HS256", "none"):
        with desk.browser() as browser:
            code, state = desk.liar.code(desk.begin(browser))
            token = forged(desk.liar, desk.liar.codes[code], algorithm, public)
            desk.liar.instead = token
            answer = desk.finish(browser, code, state)
            assert (answer.status_code, "is not allowed" in answer.text) == (403, True)
            assert "spikeguard_session" not in browser.cookies


def forged(liar: Liar, nonce: str, algorithm: str, secret: bytes) -> str:
    """A token that a careless reader takes: signed with the public key as if it were a secret, or
    not at all."""
    now = int(time.time())
    claims = {"iss": liar.issuer, "aud": CLIENT_ID, "sub": "1", "nonce": nonce, "email": "a@b.c"}
    header = {"alg": algorithm, "kid": "first"}
    parts = [header, {**claims, "groups": ["ml-leads"], "iat": now, "exp": now + 99}]
    said = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    mac = hmac.new(secret, said.encode(), "sha256").digest() if algorithm == "HS256" else b""
    return f"{said}.{_base64(mac)}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


SKEWED = {  # when it was issued and when it ends, seconds from now -> status
    (-45, 300): 303, (45, 300): 303, (-300, -45): 303, (90, 300): 403, (-9, -90): 403,
}  # fmt: skip


def test_clocks_may_differ_by_the_skew_and_no_more(desk: Desk) -> None:
    for (issued_s, ends_s), status in SKEWED.items():
        now = int(time.time())
        desk.liar.claims = {"iat": now + issued_s, "exp": now + ends_s}
        with desk.browser() as browser:
            assert desk.sign_in(browser).status_code == status, (issued_s, ends_s)


def test_new_keys_of_the_provider_count_from_the_next_sign_in(desk: Desk) -> None:
    with desk.browser() as browser:
        assert desk.sign_in(browser).status_code == 303
        desk.liar.keys = KeySet([new_key("second")])
        assert desk.sign_in(browser).status_code == 303


def test_an_answer_counts_once_in_the_browser_that_began_it(desk: Desk) -> None:
    """A forged state, another browser's, one that came back before, a code that was used."""
    with desk.browser() as ada, desk.browser() as mallory:
        code, state = desk.liar.code(desk.begin(ada))
        for browser, given in ((mallory, state), (ada, "x" * 43), (ada, "")):
            answer = desk.finish(browser, code, given)
            assert answer.status_code == 403
            assert "was not begun in this browser" in answer.text
        code, state = desk.liar.code(desk.begin(ada))
        kept = ada.cookies["spikeguard_oidc"]
        assert desk.finish(ada, code, state).status_code == 303
        assert "spikeguard_oidc" not in ada.cookies
        assert desk.finish(ada, code, state).status_code == 403
        mallory.cookies.set("spikeguard_oidc", kept)  # whoever has the cookie has no new code
        again = desk.finish(mallory, code, state)
        assert again.status_code == 403
        assert "invalid_grant" in again.text
        mallory.cookies.set("spikeguard_oidc", kept[:-6])
        assert desk.finish(mallory, code, state).status_code == 403


WRITTEN = {
    "deep": b"[" * 2_900,
    "an object": b'{"state": "state"}',
    "no list of texts": b'["","",false,["state"]]',
    "no JSON": b"state",
    "no text": rb'["","",false,"\ud800","\ud800","\ud800"]',
}


def test_what_no_sign_in_put_into_the_browser_is_none(desk: Desk) -> None:
    for what, written in WRITTEN.items():
        with desk.browser() as browser:
            browser.cookies.set("spikeguard_oidc", base64.urlsafe_b64encode(written).decode())
            for state in ("state", "", "\ufffd"):
                answer = desk.finish(browser, "code", state)
                assert answer.status_code == 403, what
                assert "was not begun in this browser" in answer.text


def test_nobody_is_sent_elsewhere_and_no_caller_says_where_the_provider_answers_to(
    desk: Desk,
) -> None:
    bad = ("https://evil.example/", "//evil.example", "/confirm/\r\nSet-Cookie: a=b", "/\\evil")
    with desk.browser() as browser:
        for path in bad:
            answer = desk.sign_in(browser, next=path)
            assert answer.headers["location"] == "/login"
        forged = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
        answer = browser.get("/login/oidc", headers=forged)
        assert "evil" not in answer.headers["location"]


ELSEWHERE: list[tuple[Claims, str]] = [
    ({"issuer": "https://evil.example"}, "describes another issuer"),
    ({"token_endpoint": "http://evil.example/token"}, "names no token_endpoint at https"),
    ({"jwks_uri": 7}, "names no jwks_uri at https"),
    ({"jwks_uri": None}, "names no jwks_uri at https"),
    ({"authorization_endpoint": "javascript:alert(1)"}, "names no authorization_endpoint"),
]


def test_a_description_that_leads_elsewhere_is_not_taken(desk: Desk) -> None:
    for description, said in ELSEWHERE:
        desk.liar.description = description
        with desk.browser() as browser:
            answer = browser.get("/login/oidc")
        assert answer.status_code == 503
        assert said in answer.text


def test_a_provider_that_is_down_is_said_on_the_page_where_a_token_still_signs_in(
    desk: Desk,
) -> None:
    with desk.browser() as browser:
        desk.liar.answers.clear()
        answer = browser.get("/login/oidc")
        assert answer.status_code == 503
        assert "did not answer within 5 s" in answer.text
        assert "Access token" in answer.text
        desk.liar.answers.set()
        desk.liar.status = 500
        assert "answered 500" in browser.get("/login/oidc").text
        with desk.engine.begin() as connection:
            grant = Grant(Role.VIEWER, person="Grace")
            token = issue_token(connection, grant, "test")[0]
        login = {"token": token, "name": ""}
        assert browser.post("/v1/sessions", json=login).status_code == 200


def test_a_provider_that_hangs_holds_up_sign_ins_and_nothing_else(
    oidc_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeguard_server.access.oidc.ANSWER_S", 30.0)
    with lying() as liar, serving(settings_of(oidc_url, liar)) as url:
        liar.answers.clear()
        with ThreadPoolExecutor(12) as pool, httpx.Client(base_url=url, timeout=120) as browser:
            waiting = [pool.submit(browser.get, "/login/oidc") for _ in range(12)]
            time.sleep(1.0)
            assert not any(done.done() for done in waiting)
            assert browser.get("/readyz", timeout=120).status_code == 200
            assert [browser.get("/v1/me", timeout=120).status_code for _ in range(9)] == [401] * 9
            liar.answers.set()
            assert [done.result(120).status_code for done in waiting] == [303] * 12


def test_the_provider_says_no_and_the_page_says_so_without_its_words(desk: Desk) -> None:
    with desk.browser() as browser:
        _, state = desk.liar.code(desk.begin(browser))
        said = {"state": state, "error": "access_denied<script>"}
        answer = browser.get("/login/oidc/callback", params=said)
    assert answer.status_code == 403
    assert "access_denied&lt;script&gt;" in answer.text


def test_who_is_in_no_group_is_refused_and_what_they_had_ends(desk: Desk) -> None:
    """Also the tokens that an admin made before they were taken out of the group."""
    desk.liar.claims = {"sub": "lead", "email": "lead@example.org", "groups": ["ml-leads"]}
    with desk.browser() as browser, desk.browser() as later:
        assert desk.sign_in(browser).status_code == 303
        with desk.bearing(browser) as lead:
            wanted = {"role": "viewer", "person": "Vi"}
            made = lead.post("/v1/tokens", json=wanted)
            assert made.status_code == 201, made.text
            assert made.json()["expires_in_s"] <= 30 * 86_400
        for groups in (["guests"], [], None, "ml", {"ml-leads": 1}, [["ml-leads"]]):
            desk.liar.claims["groups"] = groups
            answer = desk.sign_in(later)
            assert "none of the groups" in answer.text, groups
        assert "error" in desk.me(browser)
        viewer = {"Authorization": f"Bearer {made.json()['token']}"}
        assert later.get("/v1/me", headers=viewer).status_code == 401
    assert desk.revoked() >= 2


def test_a_lower_role_at_the_next_sign_in_ends_the_higher_one(desk: Desk) -> None:
    who = {"sub": "climber", "email": "climber@example.org"}
    desk.liar.claims = {**who, "groups": ["ml-leads"]}
    with desk.browser() as before, desk.browser() as after:
        desk.sign_in(before)
        assert desk.me(before)["role"] == "admin"
        desk.liar.claims = {**who, "groups": ["vision"]}
        desk.sign_in(after)
        assert (desk.me(after)["role"], desk.me(after)["project"]) == ("operator", "vision")
        assert "error" in desk.me(before)


def test_a_project_that_the_groups_do_not_give_is_refused(desk: Desk) -> None:
    desk.liar.claims = {"sub": "vi", "email": "vi@example.org", "groups": ["vision"]}
    with desk.browser() as browser:
        assert desk.sign_in(browser, project="audio").status_code == 403
        assert desk.sign_in(browser, project="vision").status_code == 303


def test_no_account_takes_another_ones_name(desk: Desk) -> None:
    desk.liar.claims = {"sub": "first", "email": "twin@example.org"}
    with desk.browser() as browser, desk.browser() as other:
        assert desk.sign_in(browser).status_code == 303
        desk.liar.claims = {"sub": "second", "email": "twin@example.org"}
        answer = desk.sign_in(other)
        assert answer.status_code == 403
        assert "belongs to another account" in answer.text


def test_admin_tokens_need_a_sign_in_that_the_provider_says_was_a_moment_ago(desk: Desk) -> None:
    """Its own session may be days old; it has to ask the person again, and to say when it did."""
    now = int(time.time())
    who = {"sub": "root", "email": "root@example.org", "groups": ["ml-leads"]}
    wanted = {"role": "admin", "person": "Deputy"}
    for auth_time in (now - 86_400, None):
        desk.liar.claims = {**who, "auth_time": auth_time}
        with desk.browser() as browser:
            assert desk.sign_in(browser).status_code == 303
            with desk.bearing(browser) as root:
                refused = root.post("/v1/tokens", json=wanted)
            assert refused.json()["error"]["code"] == "sign_in_again"
            answer = desk.sign_in(browser, fresh=True)
            assert answer.status_code == 403, "the provider did not ask again"
    desk.liar.claims = who
    with desk.browser() as browser:
        address = desk.begin(browser, fresh=True)
        assert "prompt=login&max_age=0" in address
        assert desk.finish(browser, *desk.liar.code(address)).status_code == 303
        with desk.bearing(browser) as root:
            assert root.post("/v1/tokens", json=wanted).status_code == 201


def test_without_a_provider_there_is_no_way_to_one(oidc_url: str) -> None:
    with (
        serving(Settings(database_url=oidc_url)) as url,
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        assert client.get("/login/oidc").status_code == 404
        assert client.get("/login/oidc/callback").status_code == 404
        assert "oidc" not in client.get("/login").text


GOOD = {
    "SPIKEGUARD_OIDC_ISSUER": "https://login.example.org/realms/ml",
    "SPIKEGUARD_OIDC_CLIENT_ID": "spikeguard",
    "SPIKEGUARD_SIGN_IN_ROLES": ROLES,
    "SPIKEGUARD_PUBLIC_URL": "https://spikes.example.org",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OIDC_ISSUER", "http://login.example.org"),
        ("OIDC_ISSUER", "login.example.org"),
        ("OIDC_ISSUER", "https://login.example.org/?a=b"),
        ("OIDC_CLIENT_ID", ""),
        ("SIGN_IN_ROLES", ""),
        ("SIGN_IN_ROLES", "ml-oncall=root"),
        ("SIGN_IN_ROLES", "ml-oncall=agent"),
        ("SIGN_IN_ROLES", "vision=operator@"),
        ("SIGN_IN_ROLES", "=operator"),
        ("OIDC_SCOPES", "email groups"),
        ("OIDC_GROUPS_CLAIM", "my groups"),
        ("PUBLIC_URL", "http://spikes.example.org"),
    ],
)
def test_a_bad_setting_is_refused_at_the_start_by_its_name(name: str, value: str) -> None:
    assert read_settings(GOOD).oidc_issuer == GOOD["SPIKEGUARD_OIDC_ISSUER"]
    with pytest.raises(SettingError) as refused:
        read_settings({**GOOD, f"SPIKEGUARD_{name}": value})
    assert refused.value.field == f"SPIKEGUARD_{name}"


def test_a_setting_of_a_provider_that_nothing_names_is_refused() -> None:
    with pytest.raises(SettingError, match="SPIKEGUARD_OIDC_ISSUER"):
        read_settings({"SPIKEGUARD_OIDC_CLIENT_ID": "spikeguard"})


def test_of_several_groups_the_highest_role_counts_and_of_equals_that_for_all() -> None:
    given = read_accesses("a=viewer, b=operator@x, c=operator@y, d=operator, *=viewer")
    operator = Access(Role.OPERATOR)
    assert best_access(accesses_of(["a", "b"], given), "") == Access(Role.OPERATOR, "x")
    assert best_access(accesses_of(["b", "c", "d"], given), "") == operator
    assert best_access(accesses_of(["b", "d"], given), "x") == Access(Role.OPERATOR, "x")
    assert best_access(accesses_of(["b"], given), "y") == Access(Role.VIEWER, "y")
    assert best_access(accesses_of(None, read_accesses("a=viewer")), "") is None
