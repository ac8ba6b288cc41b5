"""Hugging Face's Trainer over sharded parameters: what is told is the norm before clipping."""

from __future__ import annotations

import json
import runpy
import socket
from pathlib import Path

import pytest

from tests.agent.forks import FORKS, ended, started

JOB = str(Path(__file__).with_name("fsdp2_trainer_job.py"))
STEPS, LIMIT = 2, 0.05


def test_the_norm_before_clipping_is_seen_under_fsdp2(tmp_path: Path) -> None:
    """That of all shards, which are clipped to the limit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    plan = {"folder": str(tmp_path), "port": port, "steps": STEPS, "limit": LIMIT}
    ranks = [
        FORKS.Process(target=runpy.run_path, args=(JOB, {"PLAN": {**plan, "rank": rank}}, "rank"))
        for rank in range(2)
    ]
    assert ended(started(ranks)) == [0, 0]
    for rank in range(2):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert told["sharded"]
        assert told["faults"] == {}
        assert min(told["norms"]) > 10 * LIMIT
        if rank == 0:
            raw, clipped = zip(*told["seen"], strict=True)
            assert list(raw) == pytest.approx(told["norms"], rel=1e-4)
            assert list(clipped) == pytest.approx([LIMIT] * STEPS)
