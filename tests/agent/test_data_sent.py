"""What leaves the job is what the page says, and no path of it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.http_server import Answer
from spikeguard.commands.orders import TOLD
from spikeguard_protocol import AttemptStarted, Message, Record, Rollback
from tests.agent.job import Job
from tests.agent.wire import Wire, served

PAGE = (Path(__file__).parents[2] / "docs/data-sent.md").read_text()
FIELDS = {  # of what a job says of itself; whoever adds one looks here at what may be in it
    "AttemptStarted": {
        "parent", "world_size", "capabilities", "agent_version", "tokens_per_step", "settings",
        "links",
    },
    "Message": {"project", "run", "attempt", "sequence", "age_s", "records", "version"},
}  # fmt: skip


def test_every_kind_of_record_is_on_the_page() -> None:
    kinds = [kind.__name__ for kind in get_args(Record)]
    assert [name for name in kinds if f"`{name}`" not in PAGE] == []


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
    for hidden in (secret, str(tmp_path), str(Path.cwd()), str(Path.home()) + "/"):
        assert hidden.encode() not in sent
    facts = {name for name in started.settings if not name.startswith("ability.")}
    assert facts <= {*re.findall(r"`(\w+)`", PAGE), *TOLD}
    assert {
        kind.__name__: {field.name for field in fields(kind)} for kind in (AttemptStarted, Message)
    } == FIELDS
