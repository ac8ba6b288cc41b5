"""What leaves the job is what the page says, and no path of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from spikeguard.commands.orders import TOLD
from spikeguard_protocol import AttemptStarted, Record, encode
from tests.agent.job import Job
from tests.agent.wire import Wire, served

PAGE = (Path(__file__).parents[2] / "docs/data-sent.md").read_text()


def test_every_kind_of_record_is_on_the_page() -> None:
    kinds = [kind.__name__ for kind in get_args(Record)]
    assert [name for name in kinds if f"`{name}`" not in PAGE] == []


def test_a_job_sends_no_path_of_its_own_and_no_fact_beside_those_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_JOB", "swordfish")
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_SERVER", wire.url)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", "hunter2")
        job = Job(tmp_path)
        job.train_to(60)
        job.guard.finish()
    sent = b"".join(encode(message) for message in wire.messages[wire.attempt]).decode()
    for secret in (str(tmp_path), str(Path.cwd()), str(Path.home()) + "/", "swordfish", "hunter2"):
        assert secret not in sent
    facts = wire.records(AttemptStarted)[-1].settings
    named = {*re.findall(r"`(\w+)`", PAGE), *TOLD}
    assert [name for name in facts if name not in named and not name.startswith("ability.")] == []
