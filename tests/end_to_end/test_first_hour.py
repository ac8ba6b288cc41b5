"""The first hour: every block of the page, typed in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service, awaiting

PAGE = Path(__file__).parents[2] / "docs/first-hour.md"
WAIT_S = 120.0
PACE = "sleep(int(sys.argv[1]) / 150_000)"  # nobody follows the shorter run


def typed(words: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What bash prints; the page's own shell says nothing of failures."""
    done = subprocess.run(
        ["bash", "-euc", words], cwd=folder, env=environment, text=True, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


def _rollback_waits(incident: dict[str, Any]) -> bool:
    proposal = awaiting(incident)
    return proposal is not None and proposal["verb"] == "rollback"


def test_the_first_hour_goes_as_the_page_says(
    folder: Path, tmp_path: Path, children: Children
) -> None:
    text = PAGE.read_text()
    train, guarded = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    log, loop, up, job, approval, end = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.DOTALL)
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "guarded.py").write_text(guarded.replace("sleep(0.05)", PACE))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    alone = {"PATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    said = typed(log, tmp_path, alone)
    assert "divergent" in said
    assert "began at step 301 in loss, seen 1 step later" in said
    assert "cause: learning rate too high" in said

    said = typed(loop, tmp_path, alone)
    assert "spike #1 of this attempt, since step 301" in said
    assert "cause: learning rate too high" in said
    assert "would propose: roll back to step" in said

    assert up == "spikeguard up\n"
    service = Service.start(children, folder / "first-hour", "--no-dashboard")
    place = service.place
    served = {**alone, "SPIKEGUARD_CREDENTIALS": place.credentials}
    exports, ours = job.partition("rm -r out")[::2]
    assert [line.partition("=")[0] for line in exports.splitlines()] == [
        "export SPIKEGUARD_SERVER", "export SPIKEGUARD_TOKEN_FILE",
    ]  # fmt: skip
    its = {"SPIKEGUARD_SERVER": place.server, "SPIKEGUARD_TOKEN_FILE": place.agent_token_file}
    command = f"cd {tmp_path} && rm -r out{ours.removesuffix(' &' + chr(10))}"
    children.start(["bash", "-c", command], {**served, **its}, tmp_path / "job.log")

    inbox, show, approve = approval.splitlines()
    until = time.monotonic() + WAIT_S
    while not [i for i in service.incidents("first-hour") if _rollback_waits(i)]:
        assert time.monotonic() < until, (tmp_path / "job.log").read_text()
        time.sleep(0.5)
    said = typed(inbox, tmp_path, served)
    assert "rollback" in said or "roll back" in said
    assert "first-hour#1" in typed(show, tmp_path, served)
    typed(f"until {approve}; do sleep 0.5; done", tmp_path, served)  # revised since the look: again

    until = time.monotonic() + WAIT_S
    while not (closed := service.incidents("first-hour")[0])["has_postmortem"]:
        assert time.monotonic() < until, (tmp_path / "job.log").read_text()
        time.sleep(1)
    assert (closed["state"], closed["outcome"]) == ("closed", "recovered")
    typed(end, tmp_path, served)
    assert "first-hour#1" in (tmp_path / "postmortem.html").read_text()
