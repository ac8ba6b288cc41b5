"""A real Prometheus scrapes a real server by the deployed rules, a real Alertmanager routes what
fires, and every query of every dashboard finds data there.

The deployed files are taken as they are, but for addresses, the scrape interval, and how long a
condition must hold (`for:`, which promtool's tests of the rules cover).
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import sqlalchemy as sql
import yaml

from spikeguard_protocol import AttemptEnded, CommandResult, Message, ResultState, Role, encode
from spikeguard_server.jobs.postmortems import settle_postmortems
from spikeguard_trainer.stage.ports import free_port

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus/rules/spikeguard.yml"
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
PROGRAMS = {name: shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")}
RUNBOOK, DASHBOARD = "https://docs.example/operations", "http://dashboard.example:8501"
DIVERGENT = ("gone-1", "gone-2")
LIMIT_S = 45.0

pytestmark = pytest.mark.skipif(
    not all(PROGRAMS.values()),
    reason="needs the programs prometheus and prometheus-alertmanager (Debian packages)",
)


@dataclass
class Pager:
    """A receiver: an HTTP server that keeps what Alertmanager posts, by the path it posts to."""

    port: int
    told: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def alerts(self, receiver: str, **labels: str) -> dict[str, dict[str, Any]]:
        """Name -> the newest alert of that name, with these labels, that `receiver` was told of."""
        found = [a for group in self.told.get(receiver, []) for a in group["alerts"]]
        return {a["labels"]["alertname"]: a for a in found if labels.items() <= a["labels"].items()}


@dataclass(frozen=True)
class Watch:
    """A Prometheus that has scraped the server, its Alertmanager and its receivers."""

    url: str
    pager: Pager

    def state(self) -> str:
        """What was told of, and how the scrapes went: for whoever has to mend this."""
        told = {who: sorted(self.pager.alerts(who)) for who in self.pager.told}
        scrapes = httpx.get(f"{self.url}/api/v1/targets", timeout=20).json()["data"]
        errors = [(t["scrapeUrl"], t["lastError"]) for t in scrapes["activeTargets"]]
        return f"told of {told}; scrapes {errors}; firing {self.ask('ALERTS')}"

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that `query` finds now; fails where it is no query."""
        answer = httpx.get(
            f"{self.url}/api/v1/query", params={"query": query}, timeout=20, verify=False
        ).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


@pytest.fixture(scope="module")
def pager() -> Iterator[Pager]:
    """Listens for as long as the module's tests run."""
    made = Pager(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.told.setdefault(self.path.strip("/"), []).append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def story(live: Live, new_job: Callable[[str], Job]) -> Iterator[Job]:
    """An open spike, a command that failed, a request that was refused: something of everything."""
    job = new_job("watched").spike()
    proposal = job.incident()["proposal"]
    with live.person("Ada") as person:
        path = f"{job.command_path(proposal)}/approve"
        assert person.post(path, json={"revision": proposal["revision"]}).status_code == 200
        assert person.post("/v1/messages").status_code == 403
    own = {"detection": {"signals": {"router_entropy": {"direction": "down"}}}}
    with live.client(Role.ADMIN) as admin:
        assert admin.put(f"{job.path}/policy", json={"policy": own}).status_code == 200
    job.train(1, excess=3.0, tokens_per_second=9e5, router_entropy=1.7)
    job.send(CommandResult(proposal["id"], ResultState.FAILED, "no disk", job.step))
    others = [new_job(run) for run in (*DIVERGENT, "quiet")]
    for gone in others[:-1]:
        gone.train(100)
        gone.train(20, excess=math.nan)
        assert gone.incident()["kind"] == "divergent"
    closed = _closed(live, new_job)
    with live.engine.begin() as connection:
        connection.execute(sql.text("update runs set state = 'silent' where name = 'quiet'"))
    yield job
    for other in (*others, closed):
        other.send(AttemptEnded("finished"))


def _closed(live: Live, new_job: Callable[[str], Job]) -> Job:
    """A spike that is over, of a job that has a price: what it came to has been counted."""
    job = new_job("priced-and-closed")
    with live.client(Role.ADMIN) as admin:
        price = {"policy": {"price_per_hour": 98.0}}
        assert admin.put(f"{job.path}/policy", json=price).status_code == 200
    job.train(200)
    job.train(4, excess=3.0)
    job.train(300)
    assert job.incident()["outcome"] == "healed"
    settle_postmortems(live.engine)
    return job


@pytest.fixture(scope="module")
def watch(
    live: Live, story: Job, pager: Pager, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watch]:
    """Prometheus and Alertmanager with the deployed rules and routes, until all has been told."""
    folder = tmp_path_factory.mktemp("alerting")
    manager, prometheus = free_port(), free_port()
    (folder / "token").write_text(live.tokens[Role.METRICS])
    _write(folder / "alertmanager.yml", _routes(pager))
    _write(folder / "rules.yml", _rules())
    _write(folder / "prometheus.yml", _scrapes(live, folder, manager))
    started = [
        _start("prometheus-alertmanager", folder, "alertmanager", f"--storage.path={folder / 'a'}",
               f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address="),
        _start("prometheus", folder, "prometheus", f"--storage.tsdb.path={folder / 'p'}",
               f"--web.listen-address=127.0.0.1:{prometheus}", "--rules.alert.resend-delay=1s"),
    ]  # fmt: skip
    watch = Watch(f"http://127.0.0.1:{prometheus}", pager)
    try:
        _await(lambda: _keep_sending(story) and _told(pager), started, watch.state)
        yield watch
    finally:
        for process in started:
            process.kill()
            process.wait()


def _keep_sending(job: Job) -> bool:
    """A message now and then, so that there are rates."""
    job.sequence += 1
    body = encode(Message(job.project, job.run, job.attempt, job.sequence, 0.0, ()))
    return job.post(body).status_code == 200


def _told(pager: Pager) -> bool:
    wanted = {"team": {"SpikeOpen"}, "pager": {"ServerDown", "CommandNotCarriedOut"},
              "watchdog": {"Watchdog"}}  # fmt: skip
    paged = all("SpikeDivergent" in pager.alerts("pager", run=run) for run in DIVERGENT)
    return paged and all(names <= pager.alerts(who).keys() for who, names in wanted.items())


def _write(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content))


def _routes(pager: Pager) -> dict[str, Any]:
    """The deployed routes; every receiver gets a webhook."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "alertmanager/alertmanager.yml").read_text())
    config["route"]["group_wait"] = "1s"
    for receiver in config["receivers"]:
        url = f"http://127.0.0.1:{pager.port}/{receiver['name']}"
        receiver["webhook_configs"] = [{"url": url}]
    return config


def _rules() -> dict[str, Any]:
    """The deployed rules, without waiting for a condition to last."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)
    return rules


def _scrapes(live: Live, folder: Path, manager: int) -> dict[str, Any]:
    """The deployed scrapes, of the server under test and of a second one that is not there."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    links = {"spikeguard_runbook": RUNBOOK, "spikeguard_dashboard": DASHBOARD}
    assert links.keys() == config["global"]["external_labels"].keys()
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "500ms"}
    config["global"]["external_labels"] = links
    config["global"]["scrape_timeout"] = "1s"
    config["rule_files"] = [str(folder / "rules.yml")]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [
        f"127.0.0.1:{manager}"
    ]
    config["scrape_configs"] = [s for s in config["scrape_configs"] if "metrics_path" in s]
    for scrape in config["scrape_configs"]:
        absent = ["127.0.0.1:9"] if scrape["job_name"] == "spikeguard-server" else []
        scrape.pop("dns_sd_configs", None)
        scrape["static_configs"] = [{"targets": [live.url.removeprefix("http://"), *absent]}]
        scrape["authorization"]["credentials_file"] = str(folder / "token")
    return config


def _start(program: str, folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    path = PROGRAMS[program]
    assert path
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [path, f"--config.file={folder / f'{name}.yml'}", *options],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip


def _await(
    holds: Callable[[], object], started: list[subprocess.Popen[bytes]], told: Callable[[], str]
) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, told()
        for process in started:
            assert process.poll() is None, process.args
        time.sleep(0.3)


def test_what_fires_reaches_who_should_hear_of_it_with_its_runbook(watch: Watch) -> None:
    """And nobody else: a warning wakes no pager."""
    text = (DEPLOY.parent / "docs/alerts.md").read_text()
    sections = {heading.lower() for heading in re.findall(r"^### (\w+)$", text, re.M)}
    for receiver in ("team", "pager", "watchdog"):
        for name, alert in watch.pager.alerts(receiver).items():
            severity = {"team": "warning", "pager": "critical", "watchdog": "none"}[receiver]
            assert alert["labels"]["severity"] == severity, (receiver, name)
            page, _, section = alert["annotations"]["runbook_url"].partition("#")
            assert page == RUNBOOK
            assert section in sections, name
            assert not any(label.startswith("spikeguard") for label in alert["labels"])


def test_the_alert_of_a_spike_names_its_run(watch: Watch, story: Job) -> None:
    runs = {
        (group["groupLabels"]["alertname"], group["groupLabels"].get("run"))
        for group in watch.pager.told["team"]
    }
    assert ("SpikeOpen", story.run) in runs
    for group in watch.pager.told["team"]:
        if group["groupLabels"]["alertname"] == "SpikeOpen":
            assert {a["labels"]["run"] for a in group["alerts"]} == {group["groupLabels"]["run"]}
    page = watch.pager.alerts("team", run=story.run)["SpikeOpen"]["annotations"]["dashboard_url"]
    assert page == f"{DASHBOARD}/run?run={story.project}/{story.run}"


def test_each_divergent_run_pages_by_itself(watch: Watch, story: Job) -> None:
    """The second of them is a page of its own, not one more of something that fires already."""
    for run in DIVERGENT:
        alert = watch.pager.alerts("pager", run=run)["SpikeDivergent"]
        assert alert["annotations"]["dashboard_url"].endswith(f"{story.project}/{run}")


def _panels(path: Path) -> Iterator[tuple[str, str]]:
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_finds_data(watch: Watch, story: Job, path: Path) -> None:
    """As Grafana asks, with this run chosen in its variables."""
    for title, query in _panels(path):
        filled = query.replace("$project", story.project).replace("$run", story.run)
        # A rate needs two scrapes, and a busy machine answers some of them late.
        # What stands in where there is nothing would be found whatever was asked for.
        asked = filled.removesuffix(" or vector(0)")
        _await(partial(watch.ask, asked), [], partial("{}: {}".format, title, query))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_mark_and_choice_of_a_dashboard_can_be_asked_for(
    watch: Watch, live: Live, story: Job, path: Path
) -> None:
    """A spike and a decision are marked at their own times; a variable must offer the run."""
    board = json.loads(path.read_text())
    marked = {}
    for mark in board["annotations"]["list"]:
        filled = mark["expr"].replace("$project", story.project).replace("$run", story.run)
        marked[mark["name"]] = [
            one for one in watch.ask(filled) if one["metric"]["run"] == story.run
        ]
    assert [one["metric"]["text"] for one in marked["Decision"]] == ["approved: rollback"]
    assert {one["metric"]["subject"] for one in marked["Spike"]} == {f"{story.run}#1"}
    for one in (*marked["Spike"], *marked["Decision"]):
        age_s = time.time() - float(one["value"][1]) / 1000  # the value is its time
        assert 0 < age_s < 600
    assert set(marked) == {"Spike", "Decision", "Rollback", "Command", "Closed", "Note"}
    for variable in board.get("templating", {}).get("list", []):
        query = variable["query"]["query"].replace("$project", story.project)
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found = {entry["metric"][label] for entry in watch.ask(series)}
        chosen = {"project": story.project, "run": story.run, "spikeguard": live.url}
        assert chosen[variable["name"]] in found
