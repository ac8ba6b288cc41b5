"""The agent's cost beside that of another checkout, in turns: `--against CHECKOUT`.

Each turn is a process with this agent and one with the other's, which goes first alternating; a
turn's ratio compares the two, so what neighbours do to the machine for longer than a turn is in
neither. Both run this benchmark, `--brief`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.spread import Spread

CALLS = ("loss", "clip", "optimizer", "guard.step")
ORIGIN = "import spikeguard; print(spikeguard.__file__)"


def paired(checkout: Path, turns: int, quick: bool) -> str:
    """A table of both, in Markdown."""
    here, there = Path.cwd() / "agent", checkout.resolve() / "agent"
    for agent in (here, there):
        if not Path(_said(agent, "-c", ORIGIN).strip()).is_relative_to(agent):
            raise SystemExit(f"{agent} holds no spikeguard that can be imported")
    found: dict[Path, list[dict[str, float]]] = {here: [], there: []}
    for turn in range(turns):
        for agent in (here, there) if turn % 2 == 0 else (there, here):
            found[agent].append(_costs(agent, quick))
    return _table(found[here], found[there])


def _costs(agent: Path, quick: bool) -> dict[str, float]:
    size = ["--quick"] if quick else []
    asked = ["-m", "benchmarks.agent_overhead", "--brief", "--json", *size]
    told: dict[str, Any] = json.loads(_said(agent, *asked))
    if told["faults"]:
        raise SystemExit(f"the agent failed: {told['faults']}")
    calls, update = told["calls"]["agent"], told["updates"]["agent"]
    costs = {f"{call}, p50, us": calls[call]["p50_us"] for call in CALLS}
    return {**costs, "update over clipping, mean CPU ms": update["mean_added_ms"]}


def _said(agent: Path, *asked: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{agent}:{Path.cwd()}"}
    done = subprocess.run(
        [sys.executable, *asked], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout


def _table(here: list[dict[str, float]], there: list[dict[str, float]]) -> str:
    lines = ["| cost | this checkout | the other | ratio, paired |", "|---|---|---|---|"]
    for name in here[0]:
        one, other = [turn[name] for turn in here], [turn[name] for turn in there]
        ratios = [a / b for a, b in zip(one, other, strict=True)]
        lines.append(f"| {name} | {Spread.of(one)} | {Spread.of(other)} | {Spread.of(ratios)} |")
    return "\n".join(lines) + "\n"
