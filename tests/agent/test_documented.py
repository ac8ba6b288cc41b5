"""The agent's pages name all that a user can give, call, set or read, and all that leaves a job."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import spikeguard
from benchmarks.http_server import Answer
from spikeguard import Guard, attach
from spikeguard.commands.orders import TOLD
from spikeguard.loop.context import GuardState
from spikeguard.uplink.transport import Advice
from spikeguard_protocol import AttemptStarted, Message, OptionalSignal, Record, Rollback
from tests.agent.job import Job
from tests.agent.wire import Wire, served

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "agent",
    "attach",
    "updates",
    "data-order",
    "rewind",
    "orders",
    "topologies",
    "outbox",
    "measurement",
)
WRITTEN = "\n".join((DOCS / f"{page}.md").read_text() for page in PAGES)
SOURCES = [path.read_text() for path in Path(spikeguard.__file__).parent.rglob("*.py")]


def in_a_table(section: str) -> set[str]:
    """What stands in backticks in the first cell of a row of `section`."""
    body = WRITTEN.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def named_in(pattern: str) -> set[str]:
    return {name for source in SOURCES for name in re.findall(pattern, source)}


def test_every_argument_of_attach_has_a_row() -> None:
    arguments = set(inspect.signature(attach).parameters)
    assert sorted(arguments - in_a_table("Arguments of `attach`")) == []


def test_every_optional_signal_is_told() -> None:
    assert [signal.value for signal in OptionalSignal if f"`{signal.value}`" not in WRITTEN] == []


def test_everything_public_of_the_guard_is_told() -> None:
    names = {name for name in vars(Guard) if not name.startswith("_")}
    assert [name for name in sorted(names) if not re.search(rf"`(guard)?\.{name}\b", WRITTEN)] == []


def test_every_field_of_the_guards_state_is_told() -> None:
    assert [field.name for field in fields(GuardState) if f"`{field.name}`" not in WRITTEN] == []


def test_every_place_of_a_fault_has_a_row_and_no_other_has() -> None:
    places = named_in(r'(?:shield|shield_thread|note)\(\s*"([a-z_]+)"') | named_in(
        r'faults\.note, "([a-z_]+)"'
    )
    places |= {f"server ({advice})" for advice in Advice if advice is not Advice.STORED}
    assert in_a_table("Failures of the agent") == places


SENT = (Path(__file__).parents[2] / "docs/data-sent.md").read_text()
FIELDS = {  # of what a job says of itself; whoever adds one looks here at what may be in it
    "AttemptStarted": {
        "parent", "world_size", "capabilities", "agent_version", "tokens_per_step", "settings",
        "links",
    },
    "Message": {"project", "run", "attempt", "sequence", "age_s", "records", "version"},
}  # fmt: skip


def test_every_kind_of_record_is_on_the_page() -> None:
    kinds = [kind.__name__ for kind in get_args(Record)]
    assert [name for name in kinds if f"`{name}`" not in SENT] == []


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
    assert facts <= {*re.findall(r"`(\w+)`", SENT), *TOLD}
    assert {
        kind.__name__: {field.name for field in fields(kind)} for kind in (AttemptStarted, Message)
    } == FIELDS
