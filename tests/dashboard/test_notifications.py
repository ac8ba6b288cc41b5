"""The page of channels, silences and what was told, without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard import story
from tests.dashboard.notices import NOTICES
from tests.dashboard.stand_in import VIEWER_TOKEN, World, serving
from tests.dashboard.test_pages import opened, said


def notifications_script() -> None:
    from spikeguard_dashboard.views.notifications import notifications_page

    notifications_page()


@pytest.fixture
def world() -> World:
    found = story.world()
    found.notices = NOTICES
    return found


@pytest.fixture
def server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(world) as address:
        monkeypatch.setenv("SPIKEGUARD_SERVER", address)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", VIEWER_TOKEN)
        yield address


@pytest.mark.usefixtures("server")
def test_who_only_looks_sees_channels_silences_and_reasons_and_no_button() -> None:
    page = opened(notifications_script)
    text = said(page)
    for words in (
        "decisions, spikes of divergent and lingering incidents, of runs llama-*",
        "not sent",
        "https://events.pagerduty.com",
        "the racks are <moved>",
        "it had ended as healed before anybody was told",
        "llama-8b-c4#2",
        "failed Sat 14 Mar 03:09:00",
    ):
        assert words in text
    assert not page.button


@pytest.mark.usefixtures("server")
def test_a_project_that_tells_nobody_says_so(world: World) -> None:
    world.notices = {}
    assert "Nobody is told anything" in said(opened(notifications_script))
