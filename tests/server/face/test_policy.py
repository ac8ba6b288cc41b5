"""The policy as a file, the kill switch and the scorecard, by the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from spikeguard_client import Client
from spikeguard_protocol import Role
from spikeguard_server.domain.policy.settings import PolicyError
from spikeguard_server.policy_file import PolicyFormat, form_of, read_policy_text
from tests.server.face.conftest import Job
from tests.server.face.test_commands import type_in

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

TOML = 'price_per_hour = 98\nescalation = [600, 1800]\n[quiet]\nbegin = "22:00"\n'
YAML = 'price_per_hour: 98\nescalation: [600, 1800]\nquiet:\n  begin: "22:00"\n'


def test_toml_and_yaml_say_the_same() -> None:
    assert read_policy_text(TOML, PolicyFormat.TOML) == read_policy_text(YAML, PolicyFormat.YAML)
    assert (form_of("a.YML"), form_of("a.yaml"), form_of("a.toml")) == (
        PolicyFormat.YAML,
        PolicyFormat.YAML,
        PolicyFormat.TOML,
    )


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a = ", PolicyFormat.TOML),
        ("a: [", PolicyFormat.YAML),
        ("just words", PolicyFormat.YAML),
        ("expires_after_s: 60\nexpires_after_s: 86400", PolicyFormat.YAML),
        ('quiet: {begin: "22:00", end: "6:00", "begin": "23:00"}', PolicyFormat.YAML),
        ("a: &x [1]\nb: [*x, *x]", PolicyFormat.YAML),
        ("- !!python/object/apply:os.system [ls]", PolicyFormat.YAML),
        ("a: " + "[" * 9_000, PolicyFormat.YAML),
        ("a = " + "[" * 9_000, PolicyFormat.TOML),
        ("a" + ".a" * 99 + " = 1", PolicyFormat.TOML),
        ("[a" + ".a" * 99 + "]", PolicyFormat.TOML),
        ("a = {a" + ". 'a!'" * 99 + " = 1}", PolicyFormat.TOML),
        ("a = " + "9" * 9_000, PolicyFormat.TOML),
        ("a: " + "9" * 9_000, PolicyFormat.YAML),
        ("a: " + "9:" * 9_000 + "9.5", PolicyFormat.YAML),
        ("#" * 20_001, PolicyFormat.TOML),
    ],
    ids=[
        "half toml",
        "half yaml",
        "no table",
        "a name twice in yaml",
        "a name twice in a table in yaml",
        "aliases",
        "objects",
        "deep yaml",
        "deep toml",
        "dotted toml",
        "dotted table",
        "dotted and quoted",
        "long number in toml",
        "long number in yaml",
        "large number in yaml",
        "length",
    ],
)
def test_a_text_that_is_no_policy_is_one_clear_error(text: str, form: PolicyFormat) -> None:
    with pytest.raises(PolicyError) as refused:
        read_policy_text(text, form)
    assert refused.value.field == "document"


@pytest.mark.parametrize(
    ("text", "limit"), [("a: &x [1]\nb: [*x, *x]", "no aliases"), ("- " * 60, "at most 50 deep")]
)
def test_a_yaml_that_would_cost_too_much_is_told_why(text: str, limit: str) -> None:
    with pytest.raises(PolicyError, match=limit):
        read_policy_text(text, PolicyFormat.YAML)


def test_a_file_is_put_in_force_as_it_stands(live: Live) -> None:
    with live.client(Role.ADMIN) as admin:
        for form, text in (("toml", TOML), ("yaml", YAML)):
            asked = {"project": "of-files", "format": form}
            put = admin.put("/v1/policy/document", params=asked, content=text)
            assert put.status_code == 200, put.text
            policy = put.json()["policy"]
            assert (policy["price_per_hour"], policy["escalation"]) == (98.0, [600.0, 1800.0])
            assert (policy["quiet"]["begin"], policy["quiet"]["end"]) == ("22:00", "07:00")
        wrong = admin.put("/v1/policy/document", params=asked, content="quiet:\n  begin: 7\n")
        assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "quiet.begin")
        assert admin.put("/v1/policy/document", content=b"\xff").status_code == 422


@pytest.mark.parametrize(
    ("form", "text", "field"),
    [
        ("toml", "watch_steps = 0x" + "f" * 5_000, "watch_steps"),
        ("toml", "price_per_hour = " + "9" * 400, "price_per_hour"),
        ("toml", "lr_factors = [0.1, " + "9" * 400 + "]", "lr_factors"),
        ("toml", "[detection]\nband = " + "9" * 400, "detection"),
        ("yaml", "escalation: [" + "9" * 4_000 + "]", "escalation"),
        ("yaml", "watch_steps: " + ":".join(["59"] * 3_000), "watch_steps"),
    ],
)
def test_a_whole_number_of_too_many_digits_is_named(
    live: Live, form: str, text: str, field: str
) -> None:
    with live.client(Role.ADMIN) as admin:
        asked = {"project": "of-files", "format": form}
        answer = admin.put("/v1/policy/document", params=asked, content=text)
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["field"] == field
    assert "18 digits" in error["message"]


def test_whoever_decides_throws_the_switch_and_an_admin_lifts_it(live: Live) -> None:
    wanted = {"project": "of-switch", "reason": "a bad checkpoint went round"}
    with live.person("Ada") as ada, live.person("Root", Role.ADMIN) as root:
        thrown = ada.post("/v1/policy/halt", json=wanted)
        assert (thrown.status_code, thrown.json()["policy"]["halted"]) == (200, True)
        assert thrown.json()["created_by"] == "Ada"
        assert ada.post("/v1/policy/halt", json=wanted).status_code == 409
        assert ada.post("/v1/policy/resume", json=wanted).status_code == 403
        lifted = root.post("/v1/policy/resume", json=wanted)
        assert (lifted.status_code, lifted.json()["policy"]["halted"]) == (200, False)


def test_a_scorecard_of_nothing_is_empty(live: Live) -> None:
    with live.client(Role.VIEWER) as viewer:
        card = viewer.get("/v1/policy/scorecard", params={"project": "of-files"}).json()
    assert (card["decisions"], card["saved_steps"], card["items"]) == (0, 0, [])


def test_a_shadow_that_was_not_needed_is_scored_against_by_everyone_who_asks(
    live: Live, face_url: str
) -> None:
    """It would have rolled back; nobody did, and the spike healed by itself."""
    project, shadow = "shadowed", {"mode": "shadow", "budget": 1, "cooldown_s": 0}
    with live.client(Role.ADMIN) as admin:
        asked = {"project": project, "format": "yaml"}
        policy = yaml.safe_dump({"approval": {"rollback": shadow}})
        assert admin.put("/v1/policy/document", params=asked, content=policy).status_code == 200
    job = Job(live, "heals", project=project).start().spike()
    while job.incident()["outcome"] is None:
        job.train(50)
        assert job.step < 3000
    with live.client(Role.VIEWER) as viewer:
        card = viewer.get("/v1/policy/scorecard", params={"project": project}).json()
    assert job.incident()["outcome"] == "healed"
    [item] = card["items"]
    assert item["cost_steps"] > 0
    assert (item["verb"], item["hindsight"]) == ("rollback", "not_needed")
    assert card["saved_steps"] == item["saved_steps"] == -item["cost_steps"]
    assert {word: n for word, n in card["by_hindsight"].items() if n} == {"not_needed": 1}
    assert Client(live.url, live.tokens[Role.VIEWER]).scorecard(project) == card
    told = type_in(face_url, "policy", "scorecard", "--project", project)
    assert told.returncode == 0, told.stderr
    assert item["command"] in told.stdout
    assert "not needed" in told.stdout
    assert f"{item['cost_steps']}" in told.stdout
