"""What a sample costs from the loop's queue to the bytes that travel: CPU, calls and bytes.

One thread puts samples as a job does, writes them down, makes a message every ten, and has it
acknowledged; `--beside TREE` does the same with the agent of another checkout, in turns, so that
both see the same machine. `--hold` keeps every message back until the end, as an outage does.

    python -m benchmarks.outbox_cost [--beside TREE] [--hold] [--rounds N] [--json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import machine

ROOT = Path(__file__).parent.parent
SAMPLES, A_MESSAGE, SIGNALS = 2_000, 10, 14
Figures = dict[str, float]


def _io() -> tuple[int, int]:
    """Bytes written and calls that wrote, of this process."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["wchar"]), int(told["syscw"])


def one_round(folder: Path, hold: bool) -> Figures:
    """Of one sample, with the agent that this process imports."""
    from spikeguard.uplink.outbox import Outbox
    from spikeguard_protocol import BatchRange, RunId, Samples, encode

    try:
        from spikeguard.uplink.lines import shortened  # type: ignore[import-not-found]
    except ImportError:
        shortened = None
    syncs, fdatasync = [0], os.fdatasync

    def counted(fd: Any) -> None:
        syncs[0] += 1
        fdatasync(fd)

    os.fdatasync = counted

    def body_of(message: Any) -> bytes:
        found = getattr(message, "body", None)
        return found if isinstance(found, bytes) else encode(shortened(message))

    names = ["loss", "grad_norm", "lr", *(f"signal_{n}" for n in range(SIGNALS - 3))]
    box = Outbox(folder / ("a" * 16), RunId("default", "cost"), "a" * 16, 2**30)
    before, began, sent = _io(), time.process_time(), 0
    for step in range(1, SAMPLES + 1):
        columns = {name: (step * 1.000037 + n,) for n, name in enumerate(names)}
        box.put(Samples(0, (step,), columns, (BatchRange(step - 1, step),)))
        box.keep_up()
        if step % A_MESSAGE == 0 and not hold:
            message = box.next_message()
            assert message is not None
            sent += len(body_of(message))
            box.acknowledge(message.sequence)
    while not box.empty:
        message = box.next_message()
        assert message is not None
        sent += len(body_of(message))
        box.acknowledge(message.sequence)
    cpu_s, after = time.process_time() - began, _io()
    box.close()
    return {
        "cpu_us": cpu_s / SAMPLES * 1e6,
        "written_bytes": (after[0] - before[0]) / SAMPLES,
        "write_calls": (after[1] - before[1]) / SAMPLES,
        "fdatasyncs": syncs[0] / SAMPLES,
        "sent_bytes": sent / SAMPLES,
    }


def _by(tree: Path, hold: bool) -> Figures:
    """The same in a process that imports the agent of `tree`."""
    code = (
        "import sys, json, tempfile, pathlib; from benchmarks.outbox_cost import one_round;"
        "print(json.dumps(one_round(pathlib.Path(tempfile.mkdtemp()), sys.argv[1] == 'hold')))"
    )
    path = os.pathsep.join((str(tree / "agent"), str(ROOT)))
    ran = subprocess.run(
        [sys.executable, "-c", code, "hold" if hold else "send"],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=True,
    )
    found: Figures = json.loads(ran.stdout)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the medians."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout of this repository")
    parser.add_argument("--hold", action="store_true", help="send everything at the end")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    trees = {"here": ROOT, **({"beside": options.beside} if options.beside else {})}
    rounds = [
        {name: _by(tree, options.hold) for name, tree in trees.items()}
        for _ in range(options.rounds)
    ]
    figures = {
        name: {key: median(each[name][key] for each in rounds) for key in rounds[0][name]}
        for name in trees
    }
    ratios = [
        each["here"]["cpu_us"] / each["beside"]["cpu_us"] for each in rounds if "beside" in each
    ]
    found = {"machine": machine(), "samples": SAMPLES, **figures}
    if ratios:
        found["cpu_ratio"] = {"median": median(ratios), "least": min(ratios), "most": max(ratios)}
    print(json.dumps(found, indent=1) if options.json else "\n".join(map(str, found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
