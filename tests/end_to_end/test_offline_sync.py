"""A run without a server, uploaded to a real one with a real database."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from spikeguard import CheckpointDirectory
from spikeguard.cli.sync import sync
from spikeguard.uplink.earlier_attempts import earlier_outboxes
from spikeguard.uplink.transport import Transport
from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path
from spikeguard_trainer.stage.service import Service
from tests.agent.job import FAST, Job
from tests.programs import typed

RUN = RunId("default", "test")


def again(service: Service, directory: Path, token_file: str) -> int:
    server = service.place.server
    return sync(
        Namespace(directory=str(directory), server=server, token_file=token_file, json=False)
    )


def command(service: Service, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **service.agent_environment(1.0)}
    return typed("sync", str(directory), environment=environment)


def stored_steps(service: Service) -> list[int]:
    series = service.api.get(f"{run_path(RUN)}/series", signals="loss", points=20_000)
    return sorted(step for segment in series["segments"] for step in segment["steps"])


def test_an_offline_run_is_uploaded_once_however_often_it_is_tried(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No agent's token first; then the answer to a message is lost; then twice in full."""
    quick = replace(FAST, snapshot_every=0)
    job = Job(tmp_path, checkpoints=CheckpointDirectory("none", every=0), settings=quick)
    job.train_to(1_000)
    job.guard.finish()

    with pytest.raises(CommandFailed, match="SPIKEGUARD_TOKEN"):
        again(service, tmp_path, service.place.login_token_file)

    (outbox,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    token = Path(service.place.agent_token_file).read_text().strip()
    message = outbox.next_message()
    assert message is not None
    assert Transport(service.place.server, token, 5.0).send(message).ack is not None
    outbox.close()
    assert 0 < len(stored_steps(service)) < 1_000

    first = command(service, tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "test: 2 messages uploaded\n"
    assert stored_steps(service) == list(range(1, 1_001))

    capsys.readouterr()
    assert again(service, tmp_path, service.place.agent_token_file) == 0
    assert capsys.readouterr().out == "test: nothing was waiting\n"
    assert stored_steps(service) == list(range(1, 1_001))
    spikes = [i for i in service.incidents("test") if i["kind"] != "outlier_batch"]
    assert spikes == []
