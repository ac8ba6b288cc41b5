"""Prometheus and Grafana are given what fits the server, the compose file and one another."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.reference.metrics import everything
from spikeguard_protocol import CommandState, Outcome, Role
from spikeguard_server.identity.permissions import TABLE
from spikeguard_server.metrics import Metrics
from spikeguard_server.report.facts import PostMortem
from tests.domain.policy.situations import incident
from tests.server.notify.test_hostile_text import NOW, RUN, command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CONFIG: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
RULES = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
PROVISIONING = DEPLOY / "grafana/provisioning"
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not here")


def _alerts() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def _queries(node: Any) -> Iterator[str]:
    """Every PromQL expression anywhere in a dashboard, its variables filled in."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield re.sub(r"\$\w+", ".*", node["expr"])
        for value in node.values():
            yield from _queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from _queries(value)


def _dashboard(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def _exported() -> dict[str, set[str]]:
    """Series name -> label names, of everything that the server can tell."""
    metrics = Metrics(CollectorRegistry())
    metrics.requests.labels("GET", "/", "200").inc()
    metrics.latency.labels("GET", "/").observe(1.0)
    decided = command(CommandState.APPROVED, "", decided_at=NOW, decided_by="Ada")
    recovered = incident(outcome=Outcome.RECOVERED)
    metrics.count_incident(PostMortem(RUN, recovered, (), (decided,), NOW, NOW, NOW))
    metrics.info.labels("0.1", "https://guard.example").set(1)
    text = generate_latest(metrics.registry).decode() + generate_latest(everything()).decode()
    families = text_string_to_metric_families(text)
    found: dict[str, set[str]] = {"up": set()}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update({*sample.labels, "job", "instance"})
    return found


@pytest.mark.parametrize("path", [*DASHBOARDS, *RULES], ids=lambda path: path.stem)
def test_every_query_asks_for_series_that_the_server_tells(path: Path) -> None:
    exported = _exported()
    queries = list(_queries(yaml.safe_load(path.read_text())))
    assert queries
    for query in queries:
        for name, labels in re.findall(r"(spikeguard_\w+)(?:\{([^}]*)\})?", query):
            assert name in exported, f"{name} in {query}"
            assert set(re.findall(r"(\w+)\s*[=!]", labels)) <= exported[name], query


@needs_promtool
@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_is_promql(path: Path, tmp_path: Path) -> None:
    """As recording rules, because promtool checks those without a Prometheus."""
    queries = sorted(set(_queries(_dashboard(path))))
    rules = [{"record": f"query:{number}", "expr": q} for number, q in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    _promtool("check", "rules", str(file))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_reads_the_provisioned_data_source(path: Path) -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())
    (source,) = sources["datasources"]
    uids = re.findall(r'"type": "prometheus",\s*"uid": "([^"]+)"', path.read_text())
    assert set(uids) == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    for panel in _dashboard(path)["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        assert panel["description"]


def test_grafana_finds_its_dashboards_where_they_are_mounted() -> None:
    provider = yaml.safe_load((PROVISIONING / "dashboards/spikeguard.yml").read_text())
    place = provider["providers"][0]["options"]["path"]
    mounts = dict(entry.split(":")[:2] for entry in SERVICES["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == place
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in {f"{place}/{path.name}" for path in DASHBOARDS}


def test_prometheus_asks_a_service_of_the_stack_for_what_its_role_may_read() -> None:
    jobs = {job["job_name"]: job for job in CONFIG["scrape_configs"] if "metrics_path" in job}
    assert {job["metrics_path"] for job in jobs.values()} == {"/metrics", "/metrics/fleet"}
    (each,) = jobs["spikeguard-server"]["dns_sd_configs"]  # an address a replica
    assert (each["names"], each["port"]) == (["server"], 8000)
    assert jobs["spikeguard-fleet"]["static_configs"] == [{"targets": ["server:8000"]}]
    mounts = dict(entry.split(":")[:2] for entry in SERVICES["prometheus"]["volumes"])
    for job in jobs.values():
        assert TABLE[("GET", job["metrics_path"])].roles == {Role.METRICS}
        file = job["authorization"]["credentials_file"]
        assert file == f"{mounts['secrets-prometheus']}/token"
    assert mounts["./deploy/prometheus"] == "/etc/prometheus"
    assert CONFIG["rule_files"] == ["/etc/prometheus/rules/*.yml"]


def test_prometheus_tells_the_alertmanager_of_the_stack() -> None:
    (manager,) = CONFIG["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    mounts = dict(entry.split(":")[:2] for entry in SERVICES["alertmanager"]["volumes"])
    assert mounts["./deploy/alertmanager"] == "/etc/alertmanager"
    (command,) = (w for w in SERVICES["alertmanager"]["command"] if "config.file" in w)
    assert command == "--config.file=/etc/alertmanager/alertmanager.yml"


@pytest.mark.skipif(not shutil.which("amtool"), reason="amtool is not here")
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=Watchdog severity=none", "watchdog"),
        ("alertname=SpikeDivergent severity=critical", "pager"),
        ("alertname=SpikeOpen severity=warning project=default run=gpt", "team"),
    ],
)
def test_an_alert_is_routed_by_how_bad_it_is(labels: str, receiver: str) -> None:
    config = f"--config.file={DEPLOY / 'alertmanager/alertmanager.yml'}"
    command = ["amtool", "config", "routes", "test", config, *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, receiver), done.stderr


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", text, re.M)}
    for alert in _alerts():
        assert alert["labels"]["severity"] in {"critical", "warning", "none"}
        assert alert["annotations"]["summary"]
        base, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert base == "{{ $externalLabels.spikeguard_runbook }}"
        assert anchor == alert["alert"].lower()
        assert anchor in anchors, f"docs/alerts.md has no section {alert['alert']}"


def test_an_alert_about_a_run_leads_to_its_page() -> None:
    """And the bases of all links are what the stack is told once."""
    for alert in _alerts():
        about_a_run = "$labels.run" in alert["annotations"]["summary"]
        assert about_a_run == ("dashboard_url" in alert["annotations"]), alert["alert"]
    said = CONFIG["global"]["external_labels"]
    given = SERVICES["prometheus"]["environment"]
    assert said == {
        "spikeguard_runbook": "${SPIKEGUARD_RUNBOOK_URL}",
        "spikeguard_dashboard": "${SPIKEGUARD_DASHBOARD_URL}",
    }
    assert {f"${{{name}}}" for name in given} == set(said.values())
    assert (
        given["SPIKEGUARD_DASHBOARD_URL"]
        == SERVICES["server"]["environment"]["SPIKEGUARD_DASHBOARD_URL"]
    )
    text = (ROOT / "docs/alerts.md").read_text()
    assert all(f"`{name}`" in text for name in given)


def test_every_alert_has_a_test_of_its_rule() -> None:
    tests = yaml.safe_load(Path(__file__).with_name("rules_test.yml").read_text())["tests"]
    tested = {case["alertname"] for test in tests for case in test["alert_rule_test"]}
    assert tested == {alert["alert"] for alert in _alerts()}


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    _promtool("check", "config", "--syntax-only", str(DEPLOY / "prometheus/prometheus.yml"))
    _promtool("check", "rules", *map(str, RULES))


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    _promtool("test", "rules", str(Path(__file__).with_name("rules_test.yml")))


def _promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
