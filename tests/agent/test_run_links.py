"""Where the job's trackers show its run: told or found, sent to the server, never in the way."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spikeguard import AttachError
from spikeguard.commands import order_limits
from spikeguard.uplink.run_links import LOG_DIRECTORY_FACT, log_directory, run_links
from spikeguard_protocol import AttemptStarted, Message, ProtocolError, Rollback
from tests.agent.job import FAST, Job
from tests.agent.wire import Answer, Wire, served

RUN = "https://wandb.ai/acme/gpt/runs/8f3k2x1q"


def mlflow(uri: str) -> Any:
    active = SimpleNamespace(info=SimpleNamespace(experiment_id="7", run_id="a1"))
    return SimpleNamespace(active_run=lambda: active, get_tracking_uri=lambda: uri)


def raising() -> Any:
    raise RuntimeError("of any release")


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({}, {}),
        ({"wandb": SimpleNamespace(run=SimpleNamespace(url=RUN))}, {"Weights & Biases": RUN}),
        ({"wandb": SimpleNamespace(run=None)}, {}),
        (
            {"mlflow": mlflow("https://ada:secret@ml.example/")},
            {"MLflow": "https://ml.example/#/experiments/7/runs/a1"},
        ),
        (
            {"mlflow": mlflow("https://ada:secret@ml.example/own?token=secret#secret")},
            {"MLflow": "https://ml.example/own/#/experiments/7/runs/a1"},
        ),
        (
            {"wandb": SimpleNamespace(run=SimpleNamespace(url=f"{RUN}?apiKey=secret"))},
            {"Weights & Biases": RUN},
        ),
        ({"mlflow": mlflow("file:///runs/mlruns")}, {}),
        ({"mlflow": SimpleNamespace(active_run=raising)}, {}),
    ],
)  # fmt: skip
def test_a_run_is_found_where_its_tracker_is_at_hand(
    modules: dict[str, Any], found: dict[str, str]
) -> None:
    assert run_links(None, modules) == found


def test_what_is_told_comes_before_what_is_found() -> None:
    told = {"Weights & Biases": "https://wandb.example/mine"}
    wandb = {"wandb": SimpleNamespace(run=SimpleNamespace(url=RUN))}
    assert run_links(told, wandb) == told


def test_tensorboards_folder_is_a_fact_of_the_record() -> None:
    writer = SimpleNamespace(log_directory="/runs/tb")
    assert log_directory(writer, {}) == {LOG_DIRECTORY_FACT: "/runs/tb"}
    assert log_directory(None, {"TENSORBOARD_LOGGING_DIR": "tb"}) == {LOG_DIRECTORY_FACT: "tb"}
    assert log_directory(None, {}) == {}
    bucket = SimpleNamespace(log_directory="s3://ada:secret@runs/tb?key=secret")
    assert log_directory(bucket, {}) == {LOG_DIRECTORY_FACT: "s3://runs/tb"}


FIELDS = {  # of what a job says of itself; whoever adds one looks here at what may be in it
    "AttemptStarted": {
        "parent", "world_size", "capabilities", "agent_version", "tokens_per_step", "settings",
        "links",
    },
    "Message": {"project", "run", "attempt", "sequence", "age_s", "records", "version"},
}  # fmt: skip
FACTS = {
    "lr", "betas", "eps", "weight_decay", "optimizer", "parameters", "dtype", "device",
    "micro_batches", "update_skipper", "torch", "host", "tags", "tensorboard_log_dir", "ranks",
}  # fmt: skip


def test_no_field_that_leaves_a_job_holds_a_secret_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of every message, with secrets wherever a tracker or a cloud keeps one."""
    secret = "sk-7f3a9c"
    address = f"https://ada:{secret}@tracker.example/own?token={secret}#{secret}"
    for name in ("MLFLOW_TRACKING_URI", "WANDB_BASE_URL", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, address)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow(address))
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, secret)
    (tmp_path / "token").write_text(secret)
    monkeypatch.setenv("SPIKEGUARD_TOKEN_FILE", str(tmp_path / "token"))
    bodies: list[bytes] = []
    with served(Wire()) as wire:
        answer = wire.answer

        def noted(body: bytes) -> Answer:
            bodies.append(body)
            return answer(body)

        monkeypatch.setattr(wire, "answer", noted)
        job = Job(tmp_path, server=wire.url)
        job.train_to(12)
        command = wire.order(Rollback("nothing", 3))
        while wire.result(command) is None:
            job.train_step()
        job.guard.finish()
    (started, *_) = wire.records(AttemptStarted)
    assert started.links == {"MLflow": "https://tracker.example/own/#/experiments/7/runs/a1"}
    sent = b"".join(bodies)
    assert b"tracker.example" in sent
    for hidden in (secret, str(tmp_path)):
        assert hidden.encode() not in sent
    facts = {name for name in started.settings if not name.startswith("ability.")}
    assert facts <= FACTS | order_limits.told(FAST).keys()
    assert {
        kind.__name__: {field.name for field in fields(kind)} for kind in (AttemptStarted, Message)
    } == FIELDS


@pytest.mark.parametrize(
    "links",
    [
        {"x": "javascript:alert(1)"},
        {"x": "file:///etc/passwd"},
        {"x": "https://"},
        {"x": "https://a b/"},
        {"x": 'https://a/"onclick="x'},
        {"x": "https://ada:secret@a/"},
        {"x": f"https://a/{'y' * 2000}"},
        {"<b>": "https://a/"},
        {"": "https://a/"},
        {str(n): "https://a/" for n in range(9)},
        {"x": 7},
    ],
)
def test_what_no_page_could_show_is_refused_by_name(tmp_path: Path, links: Any) -> None:
    with pytest.raises(AttachError, match="links"):
        Job(tmp_path, links=links)
    if all(isinstance(address, str) for address in links.values()):
        with pytest.raises(ProtocolError, match="links"):
            AttemptStarted(None, 1, (), "0.1.0", links=links)
