"""The pages without a browser: what they say, and that trouble is said calmly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

import spikeguard_dashboard
from spikeguard_protocol.findings import RULES
from tests.agent.integrations.lazy import LazyModule
from tests.dashboard.conftest import FOUND, RUN
from tests.dashboard.recording_proxy import RecordingProxy

if TYPE_CHECKING:
    import streamlit as st
    from streamlit.components.v2 import manifest_scanner
    from streamlit.testing import v1 as streamlit_testing

    from spikeguard_dashboard.views import incident as incident_view
else:
    st = LazyModule("streamlit")
    manifest_scanner = LazyModule("streamlit.components.v2.manifest_scanner")
    streamlit_testing = LazyModule("streamlit.testing.v1")
    incident_view = LazyModule("spikeguard_dashboard.views.incident")

APP = Path(spikeguard_dashboard.__file__).with_name("app.py")
TIMEOUT_S = 120.0
INCIDENT = f"{RUN}/incidents/1"


@pytest.fixture(autouse=True)
def _main_stays() -> Iterator[None]:
    """Streamlit's AppTest puts its script in the place of `__main__` and leaves it there."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@pytest.fixture(autouse=True, scope="module")
def _components_are_sought_once() -> Iterator[None]:
    """Streamlit's AppTest reads what every installed package says of itself each time it runs."""
    found = cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", found)
        yield


@pytest.fixture(autouse=True)
def address(proxy: RecordingProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPIKEGUARD_SERVER", proxy.address)
    _signed_in(monkeypatch, proxy.session)
    monkeypatch.delenv("SPIKEGUARD_PUBLIC_URL", raising=False)
    return proxy.address


def _signed_in(monkeypatch: pytest.MonkeyPatch, session: str) -> None:
    """What Streamlit knows of a browser that sends this cookie."""
    cookies = {"spikeguard_dashboard": session}
    monkeypatch.setattr(type(st.context), "cookies", property(lambda _: cookies))


def runs_script() -> None:
    from spikeguard_dashboard.views.runs import runs_page

    runs_page()


def run_script() -> None:
    from spikeguard_dashboard.views.run import run_page

    run_page()


def incident_script() -> None:
    from spikeguard_dashboard.views.incident import incident_page

    incident_page()


def compare_script() -> None:
    from spikeguard_dashboard.views.compare import compare_page

    compare_page()


def opened(script: Callable[[], None], **query: str) -> streamlit_testing.AppTest:
    test = streamlit_testing.AppTest.from_function(script, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        test.query_params[name] = value
    return test.run()


def said(test: streamlit_testing.AppTest) -> str:
    """Everything that the page says in HTML, and no stack trace."""
    assert not test.exception, test.exception
    return unescape("\n".join(element.proto.body for element in test.get("html")))


def test_the_first_page_begins_with_what_waits_for_a_decision(proxy: RecordingProxy) -> None:
    proxy.change("/v1/runs", lambda answer: answer["items"][1].update(live_attempts=2))
    page = streamlit_testing.AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run()
    text = said(page)
    assert text.index("llama-8b-c4#1") < text.index("waiting for a decision")
    needs = list(page.dataframe[0].value["Needs"])
    assert needs[:2] == ["#1 divergent, a decision", "2 attempts alive"]


def test_the_table_shows_runs_with_values_that_are_not_finite_and_their_tags(
    proxy: RecordingProxy,
) -> None:
    proxy.change("/v1/runs", lambda answer: answer["items"][1].update(last_loss="nan"))
    test = opened(runs_script)
    said(test)
    table = test.dataframe[0].value
    assert list(table["Run"].str.rpartition("run=")[2]) == [
        "default/llama-8b-c4", "vision/vit-g", "default/llama-8b-old",
    ]  # fmt: skip
    assert table["Loss"][1] == "NaN"
    assert table["Needs"][0] == "#1 divergent, a decision"
    assert table["Tags"][0] == ["c4"]


def test_filters_of_the_address_and_of_the_fields_are_asked_of_the_server(
    proxy: RecordingProxy,
) -> None:
    test = opened(runs_script, search="vit", state="silent", tag="c4")
    test.text_input(key="search").set_value("llama").run()
    said(test)
    assert "Filtered by state, tag" in [caption.value for caption in test.caption]
    asked = [path for path in proxy.asked if path.startswith("/v1/runs?")]
    assert "search=llama" in asked[-1]
    assert "state=silent" in asked[-1]
    assert "tag=c4" in asked[-1]
    assert "sort=urgency" in asked[-1]


def test_runs_are_compared_by_step_or_tokens_without_what_was_undone() -> None:
    runs = ["llama-8b-c4", "llama-8b-old"]
    test = streamlit_testing.AppTest.from_function(compare_script, default_timeout=TIMEOUT_S)
    test.query_params["run"], test.query_params["by"] = runs, "Tokens"
    text = said(test.run())
    assert "by tokens trained" in text
    for name in runs:
        assert name in text
    charts = test.get("vega_lite_chart") or test.get("arrow_vega_lite_chart")
    assert len(charts) == 2  # loss and gradient norm


@pytest.mark.parametrize("script", [runs_script, run_script])
def test_incidents_that_cannot_be_shown_are_not_passed_over(
    script: Callable[[], None], proxy: RecordingProxy
) -> None:
    """A list of incidents that is missing would read as a run without any."""
    proxy.change("/v1/incidents", lambda answer: answer["items"][0].pop("kind"))
    text = said(opened(script, run="llama-8b-c4"))
    assert "missing required field <code>kind</code>" in text


def test_a_run_shows_all_there_is_to_say_of_it_and_no_more(proxy: RecordingProxy) -> None:
    """What warned and came to nothing, changes from outside with their effect, what the doctor
    found and what needs a hand."""
    run, rule = proxy.read(RUN), RULES["rate_high"]
    headings = ["Warnings", "Changes from outside", rule.title]
    headings += ["skip update: no</span> AdamW takes no found_inf. AdamW does with fused"]
    below = ["Update norm", f"{run['precursors'][0]['step']:,}"]
    below += ["new data mix, 30 % code (week 10)", "expected lower", run["notes"][0]["outcome"]]
    below += [*FOUND.values(), rule.remedy, rule.source]
    text = said(opened(run_script, run="default/llama-8b-c4"))
    assert [part for part in (*headings, *below) if part not in text] == []
    assert text.count(headings[-1]) == 1

    def empty(run: Any) -> None:
        run.update(precursors=[], notes=[], state="ended")  # nobody can do anything
        run["attempts"][0]["settings"].clear()

    proxy.change(RUN, empty)
    text = said(opened(run_script, run="default/llama-8b-c4"))
    assert [part for part in headings if part in text] == []


def test_a_window_of_steps_is_asked_of_the_server(proxy: RecordingProxy) -> None:
    test = opened(run_script, run="llama-8b-c4")
    said(test)
    test.button_group(key="window").set_value("Last 200").run()
    said(test)
    last = proxy.read(RUN)["last_step"]
    asked = [path for path in proxy.asked if "/series" in path]
    assert f"first={last - 199}&last={last}" in asked[-1]


def test_an_incident_tells_its_story_and_leads_to_the_page_that_decides(address: str) -> None:
    text = said(opened(incident_script, run="llama-8b-c4", number="1"))
    assert "the loss rose from 2." in text
    assert f'{address}/incident/default/llama-8b-c4/1" target="_self">Look at it and decide' in text


@pytest.mark.parametrize("session", ["", "a-session-that-has-ended-0123456789"])
@pytest.mark.parametrize("script", [runs_script, run_script, incident_script, compare_script])
def test_who_has_not_signed_in_sees_only_the_way_to_sign_in(
    script: Callable[[], None], session: str, address: str, proxy: RecordingProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _signed_in(monkeypatch, session)
    text = said(opened(script, run="llama-8b-c4", number="1"))
    assert f"{address}/login?next=" in text
    assert set(proxy.asked) <= {"/v1/me"}


def test_a_closed_incident_leads_to_its_post_mortem(address: str) -> None:
    text = said(opened(incident_script, run="llama-8b-old", number="1"))
    assert f'{address}/incident/default/llama-8b-old/1/postmortem"' in text


def test_a_page_without_its_subject_says_how_to_write_the_address() -> None:
    assert "/run?run=default/gpt-124m-7" in said(opened(run_script))
    assert "names no incident" in said(opened(incident_script, run="a", number="three"))


def test_an_unknown_run_is_said_in_the_servers_words() -> None:
    assert "There is no run nope" in said(opened(run_script, run="nope"))


@pytest.mark.parametrize(
    "body", [{"items": [{}], "next_cursor": None}, {"hello": "I am another service"}]
)
def test_a_strangers_answer_is_no_stack_trace(proxy: RecordingProxy, body: object) -> None:
    proxy.broken = 200, body
    text = said(streamlit_testing.AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run())
    assert "not in the form that this version expects" in text


def test_a_wrong_setting_is_said_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", "localhost:8000")
    text = said(streamlit_testing.AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run())
    assert "http://HOST:PORT" in text


def test_names_and_reasons_from_outside_do_not_become_html(proxy: RecordingProxy) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    proxy.change(INCIDENT, lambda found: found.update(title=nasty, summary=nasty))
    test = opened(incident_script, run="llama-8b-c4", number="1")
    assert all(nasty not in element.proto.body for element in test.get("html"))
    assert nasty in said(test)


def test_below_a_base_path_every_page_carries_the_script_that_loads_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy may put the dashboard below a path, which Streamlit is told."""
    from spikeguard_dashboard.__main__ import CarefulHeaders

    monkeypatch.setattr("streamlit.get_option", {"server.baseUrlPath": "/guard/"}.__getitem__)
    below = TestClient(CarefulHeaders(PlainTextResponse("Streamlit's own")))
    reloads = ["preloadError" in below.get(path).text for path in ("/guard/run", "/guard/", "/run")]
    assert reloads == [True, True, False]
