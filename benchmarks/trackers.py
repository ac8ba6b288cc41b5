"""A tracker's log call in a training loop: `python -m benchmarks.trackers FOLDER [--json]`.

Trackers are asked for five metrics a step, as their documentation says, each in an environment of
its own under FOLDER that is made once with pip (some 1.5 GB for all, kept for the next time); none
of them comes into the project's. `guard.step` stands beside them, in this environment: the same
loop, its values measured and handed over. One takes turns with the other; between two calls lies
the same piece of work, after which the machine's caches are as cold as a training step leaves them.
Law: what is timed is the call and nothing else; processes and servers that a tracker starts run on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agent_overhead_jobs import percentiles
from benchmarks.machine import machine

CALLS, TURNS, WARM_UP = 1_000, 10, 20
SPIKEGUARD = "spikeguard, offline"

LOOP = """
import json, sys, time

def work():
    total = 0.0
    for number in range(40_000):
        total += number * 1e-9
    return total

def serve(log, end):
    step = 0
    for line in sys.stdin:
        wall, own = [], []
        for _ in range(int(line)):
            step += 1
            value = work() + step
            metrics = {"loss": value, "grad_norm": value, "lr": 3e-4, "a": value, "b": value}
            before(metrics)
            began, own_began = time.perf_counter(), time.thread_time()
            log(metrics, step)
            own_ended, ended = time.thread_time(), time.perf_counter()
            wall.append(ended - began)
            own.append(own_ended - own_began)
        print("TOLD " + json.dumps({"wall": wall, "own": own}), flush=True)
    end()

before = lambda metrics: None
"""

MLFLOW = """
import mlflow
mlflow.set_tracking_uri("sqlite:///" + sys.argv[1] + "/store.db")
mlflow.start_run()
serve(lambda m, s: mlflow.log_metrics(m, step=s, synchronous={}), mlflow.end_run)
"""

OURS = """
import torch, spikeguard
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
chosen = spikeguard.Settings(snapshot_every=0, slow_signals_every=10**9, handle_sigterm=False)
guard = spikeguard.attach(model, optimizer, run="r", directory=sys.argv[1], settings=chosen)
batch = torch.rand(8, 64)

def before(metrics):
    guard.loss(model(batch).square().mean()).backward()
    guard.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()

serve(lambda m, s: guard.step(), guard.finish)
"""


@dataclass(frozen=True, slots=True)
class Tracker:
    """What pip is asked for ("" for this environment), and how its log call is made."""

    package: str
    code: str


TRACKERS: dict[str, Tracker] = {
    "nothing: 4,000 additions": Tracker("", "serve(lambda m, s: sum(range(4_000)), lambda: None)"),
    SPIKEGUARD: Tracker("", OURS),
    "Trackio": Tracker(
        "trackio",
        "import trackio\ntrackio.init(project='p')\nserve(lambda m, s: trackio.log(m, step=s), "
        "trackio.finish)",
    ),
    "Aim": Tracker(
        "aim",
        "import aim\nrun = aim.Run(repo=sys.argv[1])\n"
        "serve(lambda m, s: run.track(m, step=s), run.close)",
    ),
    "W&B offline": Tracker(
        "wandb",
        "import wandb\nrun = wandb.init(project='p', mode='offline', dir=sys.argv[1])\n"
        "serve(lambda m, s: run.log(m, step=s), run.finish)",
    ),
    "MLflow, SQLite, asynchronous": Tracker("mlflow", MLFLOW.format("False")),
    "MLflow, SQLite": Tracker("mlflow", MLFLOW.format("True")),
}


class Job:
    """One loop in its environment."""

    def __init__(self, name: str, tracker: Tracker, folder: Path, stack: ExitStack) -> None:
        self._name = name
        home = folder / "runs" / "".join(c if c.isalnum() else "_" for c in name)
        home.mkdir(parents=True, exist_ok=True)
        code = LOOP + textwrap.dedent(tracker.code)
        environment = {**os.environ, "TRACKIO_DIR": str(home), "WANDB_SILENT": "true"}
        if tracker.package:
            environment.pop("PYTHONPATH", None)
        self._errors = stack.enter_context((home / "stderr.txt").open("w"))
        self._process = stack.enter_context(
            subprocess.Popen(
                [python(tracker, folder), "-c", code, str(home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                cwd=home,
                env=environment,
            )
        )
        stack.callback(self._process.kill)

    def make(self, calls: int) -> dict[str, list[float]]:
        """Seconds of each of so many calls, by the clock and of the calling thread."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # trackers print too
            if line.startswith("TOLD "):
                told: dict[str, list[float]] = json.loads(line.removeprefix("TOLD "))
                return told
        raise RuntimeError(f"{self._name} ended early; see {self._errors.name}")

    def end(self) -> None:
        """Let it finish; whoever takes longer than a minute is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self._process.kill()


def python(tracker: Tracker, folder: Path) -> str:
    """The interpreter of the tracker's environment, made where it is not there yet."""
    if not tracker.package:
        return sys.executable
    home = folder / tracker.package
    found = home / "bin" / "python"
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(found), "-m", "pip", "install", "--quiet", tracker.package]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        (home / "installed").touch()
    return str(found)


def version(tracker: Tracker, folder: Path) -> str:
    """Of the package that was measured."""
    ask = f"from importlib.metadata import version; print(version({tracker.package!r}))"
    command = [python(tracker, folder), "-c", ask]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def compare(names: Sequence[str], folder: Path, calls: int) -> dict[str, Any]:
    """Percentiles by tracker, `calls` calls each, in turns that begin with another one each."""
    with ExitStack() as stack:
        jobs = {name: Job(name, TRACKERS[name], folder, stack) for name in names}
        taken: dict[str, dict[str, list[float]]] = {n: {"wall": [], "own": []} for n in names}
        for job in jobs.values():
            job.make(WARM_UP)
        for turn in range(TURNS):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                for kind, seconds in jobs[name].make(calls // TURNS).items():
                    taken[name][kind] += seconds
        for job in jobs.values():
            job.end()
    return {name: {k: percentiles(s) for k, s in kinds.items()} for name, kinds in taken.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path, help="where environments are made and kept")
    asked.add_argument("--only", action="append", choices=sorted({*TRACKERS}), metavar="NAME")
    asked.add_argument("--calls", type=int, default=CALLS)
    asked.add_argument("--json", action="store_true")
    chosen = asked.parse_args()
    folder = chosen.folder.resolve()
    names = chosen.only or list(TRACKERS)
    found = {
        "machine": machine(),
        "calls": chosen.calls,
        "versions": {n: version(TRACKERS[n], folder) for n in names if TRACKERS[n].package},
        "log_call": compare(names, folder, chosen.calls),
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if chosen.json else table(found))


def table(found: dict[str, Any]) -> str:
    """The same in Markdown."""
    lines = [
        f"{found['machine']}, {found['calls']} calls each, versions {found['versions']}",
        "",
        "| log call with 5 metrics | p50 us | p99 us | max us | its own thread's p50 us | p99 us "
        "| that p50 over ours |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = found["log_call"].get(SPIKEGUARD, {}).get("own", {}).get("p50_us")
    for name, kinds in found["log_call"].items():
        wall, own = kinds["wall"], kinds["own"]
        cells = [wall["p50_us"], wall["p99_us"], wall["max_us"], own["p50_us"], own["p99_us"]]
        ratio = f"{own['p50_us'] / ours:.1f}" if ours else ""
        lines.append(f"| {name} | " + " | ".join(f"{us:,.0f}" for us in cells) + f" | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
