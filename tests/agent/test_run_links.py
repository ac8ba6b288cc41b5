"""Where the job's trackers show its run, and what else of a job's surroundings leaves it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks.http_server import Answer
from spikeguard import AttachError
from spikeguard.commands.orders import limits_told
from spikeguard_protocol import AttemptStarted, Message, ProtocolError, Rollback
from tests.agent.job import FAST, Job
from tests.agent.wire import Wire, served

FIELDS = {  # of what a job says of itself; whoever adds one looks here at what may be in it
    "AttemptStarted": {
        "parent", "world_size", "capabilities", "agent_version", "tokens_per_step", "settings",
        "links",
    },
    "Message": {"project", "run", "attempt", "sequence", "age_s", "records", "version"},
}  # fmt: skip
FACTS = {
    "lr", "betas", "eps", "weight_decay", "optimizer", "parameters", "dtype", "device",
    "micro_batches", "update_skipper", "torch", "host", "tags", "ranks",
}  # fmt: skip


def test_no_field_that_leaves_a_job_holds_a_secret_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of every message, with secrets wherever a tracker or a cloud keeps one."""
    secret = "sk-7f3a9c"
    address = f"https://ada:{secret}@tracker.example/own?token={secret}#{secret}"
    for name in ("MLFLOW_TRACKING_URI", "WANDB_BASE_URL", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, address)
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
        job = Job(tmp_path, server=wire.url, links={"MLflow": "https://tracker.example/runs/7"})
        job.train_to(12)
        command = wire.order(Rollback("nothing", 3))
        while wire.result(command) is None:
            job.train_step()
        job.guard.finish()
    (started, *_) = wire.records(AttemptStarted)
    assert started.links == {"MLflow": "https://tracker.example/runs/7"}
    sent = b"".join(bodies)
    assert b"tracker.example" in sent
    for hidden in (secret, str(tmp_path)):
        assert hidden.encode() not in sent
    facts = {name for name in started.settings if not name.startswith("ability.")}
    assert facts <= FACTS | limits_told(FAST).keys()
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
