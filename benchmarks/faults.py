"""What is lost, doubled or decided otherwise when servers, database and network fail under load.

Real server processes on one real Postgres (durable), and jobs that send through the agent's outbox
and transport and carry out what they are told. Each job is a function of its seed and of its
answers, so afterwards every table must say what it says of a job that nothing disturbed: every
acknowledged sample there once, the same decisions, commands, evidence and audit, no command
carried out twice.

Root alone can fill a disk: it is mounted for it. Whoever is not root names the others with --only.

    python -m benchmarks.faults [--quick] [--only NAME ...] [--kills N]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults_scenarios import SCENARIOS, Outcome, Plan, undisturbed
from benchmarks.faults_site import Database, preload
from benchmarks.report import command_line, machine, say, show


@contextmanager
def database() -> Iterator[Database]:
    """A Postgres of our own that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="sg-faults-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    made = Database(directory / "pg")
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


def measure(options: Namespace) -> list[Outcome]:
    """Every disturbance, one after the other."""
    preload()
    found = []
    wanted = options.only or tuple(SCENARIOS)
    with database() as postgres:
        plan = Plan(postgres, kills=options.kills)
        if options.quick:
            plan = Plan(postgres, kills=5, restarts=3, fillings=1, seconds=6.0)
        plan.twins = undisturbed(plan)
        say(f"undisturbed: {len(plan.twins)} runs")
        for name in wanted:
            found.append(SCENARIOS[name](plan))
            say(json.dumps(found[-1].shown()))
    return found


def main() -> int:
    """Print what was found; 1 where a promise was broken."""
    parser = command_line("faults", __doc__, "5 kills, one wave of jobs")
    parser.add_argument("--only", nargs="+", choices=tuple(SCENARIOS), help="these disturbances")
    parser.add_argument("--kills", type=int, default=50, help="of replicas, with 2 and with 4 each")
    options = parser.parse_args()
    found = measure(options)
    rows: list[dict[str, Any]] = [outcome.shown() for outcome in found]
    show({"machine": machine(), "disturbances": rows}, options)
    return 0 if all(outcome.verdict.kept for outcome in found) else 1


if __name__ == "__main__":
    sys.exit(main())
