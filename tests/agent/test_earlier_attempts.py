"""However often a job is killed without a server, the disk holds what one attempt may leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spikeguard.uplink.earlier_attempts import earlier_outboxes
from spikeguard_protocol import AttemptEnded, Gap, RunId, Samples

from .forks import exit_status, start_script
from .job import FAST, Job
from .test_outbox import everything, fill, outbox
from .wire import await_that

pytestmark = pytest.mark.slow

RUN = RunId("default", "test")
LIMIT, ATTEMPTS, STEPS = 40_000, 4, 600
KILLED = """
import os, signal, sys, time
from pathlib import Path
import spikeguard.uplink.backlog
from spikeguard.uplink.earlier_attempts import earlier_outboxes, shrink_to
from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import BatchRange, RunId, Samples

spikeguard.uplink.backlog.SEAL_RECORDS = 40
parent, kind, limit, attempts, steps = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
run = RunId("default", "test")

def live(own):
    earlier, told = earlier_outboxes(parent, run, str), []
    used = shrink_to(limit // 2, earlier)
    if kind == "none":
        for box in earlier:
            box.close()
        box = Outbox(parent / own, run, own, limit - used, told.append)
    else:
        box = Outbox(parent / own, run, own, limit, told.append, earlier)
    box.start()
    for step in range(1, steps + 1):
        box.put(Samples(0, (step,), {"loss": (3.0,)}, (BatchRange(step - 1, step),)))
        time.sleep(0.0002)
    size = lambda: sum(p.stat().st_size for p in parent.glob("*/*.jsonl"))
    end = time.monotonic() + 120
    while not (box.written_ahead and told and size() <= limit) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    print(own, size(), bool(told), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

for number in range(attempts):
    child = os.fork()
    if not child:
        live(f"{number:016x}")
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("server", ["absent", "none"])
def test_attempts_that_are_killed_share_one_limit(tmp_path: Path, server: str) -> None:
    """Each process is killed in its turn; what went is told, declared, and adds up."""
    parent, said = tmp_path / "outbox", tmp_path / "said.txt"
    sizes = map(str, (LIMIT, ATTEMPTS, STEPS))
    parent.mkdir()
    assert exit_status(start_script(KILLED, said, str(parent), server, *sizes)) == 0
    lines = [line.split() for line in said.read_text().splitlines()]
    assert len(lines) == ATTEMPTS, lines
    assert max(int(on_disk) for _, on_disk, _ in lines) <= LIMIT
    assert all(said == "True" for _, _, said in lines)
    boxes = earlier_outboxes(parent, RUN)
    records = [record for box in boxes for record in everything(box)]
    lost = sum(r.samples_lost for r in records if isinstance(r, Gap))
    kept = sum(len(r.steps) for r in records if isinstance(r, Samples))
    assert lost + kept == ATTEMPTS * STEPS
    assert sum(isinstance(r, AttemptEnded) for r in records) == len(boxes) == ATTEMPTS
    assert [r for r in records if isinstance(r, Samples)][-1].steps[-1] == STEPS
    for box in boxes:
        box.close()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", None])
def test_a_job_cuts_down_what_dead_attempts_left_of_its_run(
    tmp_path: Path, server: str | None
) -> None:
    parent = tmp_path / "guard/outbox"
    dead = outbox(parent, 200_000)
    fill(dead, spike=range(220, 225))
    dead.close()

    def on_disk() -> int:
        return sum(path.stat().st_size for path in parent.glob("*/*.jsonl"))

    assert on_disk() > 100_000
    job = Job(tmp_path, server=server, settings=replace(FAST, outbox_bytes=60_000))
    job.train_to(5)
    await_that(lambda: on_disk() <= 60_000 and "outbox" in job.guard.faults)
    job.guard.finish()
