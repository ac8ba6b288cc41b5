"""Whatever a fleet went through, every call that reads answers, and the answers agree.

The fleets are made by messages alone: several projects, runs with one attempt or two that live at
once, attempts that ended, rollbacks, spikes that are open or over, layers, skipped batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spikeguard_protocol import (
    Ack,
    AttemptEnded,
    AttemptStarted,
    BatchesSkipped,
    BatchRange,
    LayerNorms,
    Medium,
    Message,
    Record,
    Role,
    Samples,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    decode_ack,
    encode,
)
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from tests.server.face.conftest import VERBS, Live
from tests.server.face.serving import serving

if TYPE_CHECKING:
    import sqlalchemy as sql

    from benchmarks.fuzz_calls import Calls

FLEETS = 1
CALM, HIGH = 130, 60  # steps: a baseline, and a spike that is named
MOVES = st.sampled_from(
    ["restart", "duplicate", "train", "spike", "non_finite", "rollback", "saved", "layers",
     "skipped", "ended"]
)  # fmt: skip
_NUMBERS = count(1)


@dataclass
class Attempt:
    """One start of a run's processes, which may run beside another."""

    id: str
    sequence: int = 0
    segment: int = 0
    step: int = 0
    over: bool = False


@dataclass
class Run:
    """What a run's jobs did, as they know it themselves."""

    live: Live
    project: str
    name: str
    attempts: list[Attempt] = field(default_factory=list)
    trained: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    ack: Ack | None = None

    def send(self, attempt: Attempt, *records: Record) -> None:
        attempt.sequence += 1
        message = Message(self.project, self.name, attempt.id, attempt.sequence, 0.0, records)
        with self.live.client(Role.AGENT) as client:
            answer = client.post("/v1/messages", content=encode(message))
        assert answer.status_code == 200, answer.text
        self.ack = decode_ack(answer.content)

    def start(self) -> None:
        """Start anew, whatever became of what ran before."""
        attempt = Attempt(f"{next(_NUMBERS):016x}")
        self.attempts.append(attempt)
        self.send(
            attempt,
            AttemptStarted(None, 8, VERBS, "test", tokens_per_step=4096),
            SegmentStarted(0, SegmentReason.START, None, 0),
        )
        self.train(attempt, CALM)

    def train(self, attempt: Attempt, steps: int, loss: float = 2.0) -> None:
        numbers = tuple(range(attempt.step + 1, attempt.step + steps + 1))
        signals = {
            "loss": tuple(loss + 0.01 * math.sin(7.0 * step) for step in numbers),
            "grad_norm": tuple(0.4 + 0.01 * math.cos(5.0 * step) for step in numbers),
        }
        positions = tuple(BatchRange(step - 1, step) for step in numbers)
        self.send(attempt, Samples(attempt.segment, numbers, signals, positions))
        self.trained[attempt.id, attempt.segment] += numbers
        attempt.step += steps

    def move(self, what: str) -> None:
        """Let `what` happen to the attempt that started last and is not over."""
        running = [attempt for attempt in self.attempts if not attempt.over]
        if what in ("restart", "duplicate") or not running:
            self.start()
            if what == "duplicate" and running:
                self.train(running[-1], 5)  # it was not killed: both live
            return
        newest = running[-1]
        here = SegmentPoint(SegmentId(newest.id, newest.segment), newest.step)
        match what:
            case "train":
                self.train(newest, 20)
            case "spike":
                self.train(newest, HIGH, loss=6.0)
            case "non_finite":
                self.train(newest, 4, loss=math.nan)
            case "rollback":
                self._roll_back(newest)
            case "saved":
                target = TargetSaved(
                    f"at-{newest.segment}-{newest.step}", newest.segment, newest.step, newest.step,
                    Medium.DISK,
                )  # fmt: skip
                self.send(newest, target)
            case "layers":
                norms = {"layers.0.w": 1.0, "layers.1.w": math.inf}
                self.send(newest, LayerNorms(newest.segment, newest.step, "grad_norm", norms))
            case "skipped":
                batches = BatchRange(newest.step, newest.step + 3)
                self.send(newest, BatchesSkipped(batches, 0, here, names=("shard-0",)))
            case "ended":
                self.send(newest, AttemptEnded("finished"))
                newest.over = True

    def _roll_back(self, attempt: Attempt) -> None:
        target = attempt.step - min(50, attempt.step)
        parent = SegmentPoint(SegmentId(attempt.id, attempt.segment), target)
        attempt.segment, position, attempt.step = attempt.segment + 1, attempt.step, target
        reason = SegmentReason.ROLLBACK
        self.send(attempt, SegmentStarted(attempt.segment, reason, parent, position))
        self.train(attempt, 10)


@dataclass
class Reader:
    """Makes calls that read, with what it found in other answers."""

    calls: Calls

    def get(self, path: str, **query: Any) -> Any:
        """The answer to one call; what is wrong with it stands in `calls.findings`."""
        places = query.pop("places", {})
        case = self.calls.schema[path]["GET"].Case(path_parameters=places, query=query)
        answer = case.call(base_url=self.calls.url, **self.calls.options(case))
        self.calls.judge(case, answer)
        return answer.json() if answer.headers.get("content-type") == ["application/json"] else None

    def pages(self, path: str, limit: int, **query: Any) -> list[Any]:
        """All entries of a list, `limit` at a time."""
        found: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, limit=limit, **cursor, **query)
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    def read_paths(self) -> Iterator[str]:
        """Every path of the document that is read and whose answer ends.

        A post-mortem is 503 until it is drawn, which takes seconds: other tests read it."""
        for path, methods in self.calls.document["paths"].items():
            if "get" in methods and not path.endswith("/postmortem"):
                yield path


QUERIES: dict[str, list[dict[str, Any]]] = {
    "/v1/runs/{project}/{name}/orders": [{"wait_s": 0}],
    "/v1/runs/{project}/{name}/series": [
        {}, {"signals": "loss,grad_norm,none", "first": 5, "last": 140, "points": 7},
    ],
    "/v1/runs/{project}/{name}/audit": [{}, {"limit": 1}],
    "/v1/runs/{project}/{name}/incidents/{number}/series": [{}, {"signals": "lr", "points": 2}],
    "/v1/runs/{project}/{name}/incidents/{number}/layers": [{}, {"signal": "lr", "rows": 1}],
    "/v1/runs": [{}, {"limit": 1}],
    "/v1/incidents": [{}, {"limit": 1}, {"state": "open,recovering"}, {"state": "closed"}],
    "/v1/audit": [{}, {"limit": 1}],
    "/v1/tokens": [{}, {"limit": 1}],
    "/v1/deliveries": [{}, {"limit": 1}, {"channel": "oncall"}, {"run": "some-run"}],
}  # fmt: skip


@pytest.fixture
def reader(engine: sql.Engine, database_url: str) -> Iterator[Reader]:
    """Reads from a server whose database holds these fleets and nothing else."""
    from benchmarks.fuzz_calls import Calls  # its schemathesis would slow every worker's start

    def issue(role: Role) -> str:
        with engine.begin() as connection:
            return issue_token(connection, Grant(role, person="Ada"), "test")[0]

    with serving(Settings(database_url=database_url, requests_per_s=1e6)) as url:
        yield Reader(Calls(url, issue))


@pytest.fixture
def fleet_server(reader: Reader, engine: sql.Engine) -> Live:
    tokens = {role: reader.calls.issue(role) for role in Role}
    return Live(reader.calls.url, engine, tokens)


def new_fleet(server: Live, histories: list[list[str]]) -> list[Run]:
    """Runs of two new projects, of which each went through one of `histories`."""
    projects = [f"project-{next(_NUMBERS)}", f"project-{next(_NUMBERS)}"]
    fleet = []
    for number, history in enumerate(histories):
        run = Run(server, projects[number % 2], f"run-{number}")
        run.start()
        for what in history:
            run.move(what)
        fleet.append(run)
    return fleet


def places_of(path: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the names in `path` stand for: every run, and every incident of it."""
    if "{token}" in path or "{link}" in path:  # links that open once: there are none
        return [dict.fromkeys(("token", "link"), "no-link-of-this-server-at-all")]
    if "{name}" not in path:
        return [{}]
    named = [({"project": run["project"], "name": run["name"]}, run["incidents"]) for run in runs]
    if "{number}" not in path:
        return [place for place, _ in named]
    command = {"command": 1} if "{command}" in path else {}
    return [
        {**place, "number": number, **command}
        for place, incidents in named
        for number in range(1, incidents + 1)
    ]


def check_run(reader: Reader, run: Run, listed: dict[str, Any]) -> None:
    """What the list, the run's own page, its curves and its incidents say is the same."""
    path, place = "/v1/runs/{project}/{name}", {"project": run.project, "name": run.name}
    shown = reader.get(path, places=place)
    assert {**listed, "age_s": None} == {**{key: shown[key] for key in listed}, "age_s": None}
    assert run.ack is not None
    assert max(1, shown["live_attempts"]) == run.ack.live_attempts  # the one that is answered
    assert {attempt["id"] for attempt in shown["attempts"]} == {a.id for a in run.attempts}
    assert run.trained.keys() == {(s["attempt"], s["number"]) for s in shown["segments"]}
    series = reader.get(f"{path}/series", places=place, points=20_000)
    assert run.trained == {(s["attempt"], s["number"]): s["steps"] for s in series["segments"]}
    incidents = reader.pages("/v1/incidents", 1000, run=f"{run.project}/{run.name}")
    assert [i["number"] for i in incidents] == list(range(shown["incidents"], 0, -1))
    still_open = [i["number"] for i in incidents if i["state"] != "closed"]
    assert still_open == ([] if shown["open_incident"] is None else [shown["open_incident"]])
    for incident in incidents:
        number = {**place, "number": incident["number"]}
        detail = reader.get(f"{path}/incidents/{{number}}", places=number)
        assert _timeless(incident) == _timeless({key: detail[key] for key in incident})
    entries = [entry["number"] for entry in reader.pages(f"{path}/audit", 3, places=place)]
    assert entries == list(range(len(entries), 0, -1))


def _timeless(incident: dict[str, Any]) -> dict[str, Any]:
    """Without how long its proposal is still valid, which shrinks from one call to the next."""
    proposal = incident["proposal"]
    return {**incident, "proposal": proposal and {**proposal, "expires_in_s": None}}


def check_pages(reader: Reader) -> None:
    """A list is the same in whatever pages it is read."""
    for path, key in {"/v1/runs": "created_at", "/v1/incidents": "id", "/v1/tokens": "id"}.items():
        whole = [entry[key] for entry in reader.pages(path, 1000)]
        assert [entry[key] for entry in reader.pages(path, 3)] == whole
        assert len(whole) > 1


def check_projects(live: Live, fleet: list[Run]) -> None:
    """Whoever may read one project is shown its runs, and no other."""
    for project in {run.project for run in fleet}:
        with live.bearing(live.token(Grant(Role.VIEWER, project))) as client:
            items = client.get("/v1/runs").json()["items"]
        names = {run.name for run in fleet if run.project == project}
        assert {(run["project"], run["name"]) for run in items} == {(project, n) for n in names}


@settings(
    max_examples=FLEETS, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.lists(st.lists(MOVES, max_size=5), max_size=2))
def test_every_call_that_reads_answers_whatever_the_fleet_went_through(
    reader: Reader, fleet_server: Live, histories: list[list[str]]
) -> None:
    """In every fleet are two runs of two projects that were started again while they ran."""
    twice, wide = ["duplicate", "spike"], ["layers", "saved", "rollback", "skipped", "non_finite"]
    fleet = new_fleet(fleet_server, [twice, twice, wide, *histories])
    shown = {(run["project"], run["name"]): run for run in reader.pages("/v1/runs", 1000)}
    mine = [shown[run.project, run.name] for run in fleet]
    assert [run["live_attempts"] for run in mine][:2] == [2, 2]
    assert any(run["incidents"] for run in mine)
    for path in reader.read_paths():
        for place in places_of(path, mine):
            for query in QUERIES.get(path, [{}]):
                reader.get(path, places=place, **query)
    for run, listed in zip(fleet, mine, strict=True):
        check_run(reader, run, listed)
    check_pages(reader)
    check_projects(fleet_server, fleet)
    assert reader.calls.findings == {}
    assert len({label for label, status in reader.calls.answers if status == 200}) > 20
