"""`spikeguard mcp` over stdio, asked by the protocol's own client: it reads and suggests."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import AttemptStarted, Role, SegmentReason, SegmentStarted
from spikeguard_protocol.abilities import mitigations_to_settings
from tests.server.face.conftest import VERBS, Job, Live

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")

Call = tuple[str, dict[str, Any]]


def asked(live: Live, calls: list[Call]) -> tuple[set[str], list[Any]]:
    """The tools' names, and what each call answers; of one that is refused its words."""
    from mcp import ClientSession, StdioServerParameters, stdio_client

    given = {"SPIKEGUARD_SERVER": live.url, "SPIKEGUARD_TOKEN": live.tokens[Role.VIEWER]}
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "spikeguard_cli.main", "mcp"],
        env={**os.environ, **given},
    )

    async def ask() -> tuple[set[str], list[Any]]:
        async with stdio_client(program) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = {tool.name for tool in (await session.list_tools()).tools}
            answers: list[Any] = []
            for name, arguments in calls:
                said: Any = await session.call_tool(name, arguments)
                text = [part.text for part in said.content]
                plain = said.structured_content
                answers.append(" ".join(text) if said.is_error else plain.get("result", plain))
            return tools, answers

    return asyncio.run(asyncio.wait_for(ask(), 120))


def test_an_assistant_reads_an_incident_and_suggests_what_a_person_then_decides(
    live: Live, spiked: Job
) -> None:
    proposal = spiked.incident()["proposal"]
    rollback = {"run": spiked.run, "order": "rollback", "target": "step-200", "skip_first": 200}
    swap = {"mitigation": "swap-data", "steps": 50}
    swapping = Job(live, "swapping")
    swapping.send(
        AttemptStarted(
            None, 1, (*VERBS, "apply"), "test", settings=mitigations_to_settings({"swap-data": ""})
        ),
        SegmentStarted(0, SegmentReason.START, None, 0),
    )
    swapping.train(20)
    tools, answers = asked(
        live,
        [
            ("list_runs", {}),
            ("list_incidents", {"run": spiked.run}),
            ("read_incident", {"incident": f"{spiked.run}#1"}),
            ("read_curves", {"incident": f"{spiked.run}#1"}),
            ("list_options", {"run": spiked.run}),
            ("suggest", {**rollback, "skip_last": 209}),
            ("suggest", {**rollback, "target": "step-7"}),
            ("suggest", {"run": "swapping", "order": "apply", **swap}),
            ("suggest", {"run": "swapping", "order": "apply", "mitigation": "tight-clip"}),
            ("suggest", {"run": spiked.run, "order": "apply", "steps": 50}),
            ("read_incident", {"incident": "nothing#1"}),
        ],
    )
    assert not tools & {"approve", "reject", "order"}
    runs, incidents, incident, curves, options, suggested, unknown, *others, missing = answers
    applied, other, none = others
    assert swapping.run in {run["id"] for run in runs}  # the newest of however many
    assert [one["id"] for one in incidents] == [f"{spiked.run}#1"]
    assert incident["proposal"]["id"] == proposal["id"]
    assert incident["causes"]
    assert curves["segments"][0]["values"]["loss"]
    assert "step-200" in {target["name"] for target in options["targets"]}
    assert "roll back to step 200" in " ".join(suggested["would"])
    assert "cannot go back to step-7" in unknown
    assert "apply swap-data for 50 steps" in " ".join(applied["would"])
    assert "mitigation=swap-data" in applied["decide_at"]
    assert "has registered no tight-clip" in other
    assert "apply is not offered" in none
    assert "no" in missing.lower()
    assert spiked.incident()["proposal"]["revision"] == proposal["revision"]  # nothing was done
    assert spiked.incident()["commands"][-1]["state"] == "proposed"
    with live.browser(live.operator()) as browser:
        page = browser.get(suggested["decide_at"])
    assert (page.status_code, "batches 200 to 209" in page.text) == (200, True)


def test_a_token_that_could_decide_is_refused(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.tokens[Role.ADMIN])
    assert main(("mcp",)) == 4
    assert "token create --role viewer" in capsys.readouterr().err
