"""What a server on a streaming standby shows while the primary takes messages at full load.

Jobs train against a server on the primary as fast as it takes their messages. A second server,
of reads only, works on a hot standby of the same database. How long is it until a step that the
primary shows is shown by the standby, how long do both take to answer, and what do they refuse?

    python -m benchmarks.standby [--seconds N] [--json]
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from benchmarks.faults import database
from benchmarks.faults_job import Script, TrainingJob
from benchmarks.faults_site import Replica, Site, new_site, preload, running
from benchmarks.faults_wire import plainly
from benchmarks.machine import machine
from benchmarks.standby_database import streaming_standby
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.store.engine import open_engine

JOBS = 6
SERIES = "/series?signals=loss,grad_norm&points=2000"


@dataclass
class Reader:
    """Asks both servers, one question after the other."""

    token: str
    primary: str
    mirror: str
    at_once: int = 0  # times that the standby's first answer showed what the primary's had shown
    behind_ms: list[float] = field(
        default_factory=list
    )  # until an answer did, which takes its time
    lag_s: list[float] = field(default_factory=list)  # as /readyz says
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    def read_for(self, seconds: float) -> None:
        """Until the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._compare()
            for name, server in (("primary", self.primary), ("standby", self.mirror)):
                self._ask(f"{name} list", server, "/v1/runs")
                self._ask(f"{name} curve", server, f"/v1/runs/default/load-0{SERIES}")
            ready = self._ask("standby ready", self.mirror, "/readyz")
            if ready is not None:
                self.lag_s.append(ready["lag_s"])

    def _compare(self) -> None:
        """How long until the standby shows the step that the primary shows."""
        shown = self._ask("primary run", self.primary, "/v1/runs/default/load-0")
        began = time.monotonic()
        for asked in count():
            found = self._ask("standby run", self.mirror, "/v1/runs/default/load-0")
            if shown is None or found is None or time.monotonic() - began > 10.0:
                return
            if _newest(found) >= _newest(shown):
                self.behind_ms.append((time.monotonic() - began) * 1e3)
                self.at_once += not asked
                return

    def _ask(self, what: str, server: str, path: str) -> Any:
        request = urllib.request.Request(
            server + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        began = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            self.refused[f"{what} {error.code}"] += 1
            return None
        self.took_ms.setdefault(what, []).append((time.monotonic() - began) * 1e3)
        return found


def _newest(run: Any) -> tuple[int, int]:
    """Segments are opened in order, and steps taken in order in each."""
    newest = max(run["segments"], key=lambda segment: segment["number"])
    return newest["number"], newest["last_step"] or 0


def measure(seconds: float) -> dict[str, Any]:
    """Load on the primary, reading on both."""
    preload()
    with database() as postgres:
        site = new_site(postgres, "followed", 1)
        settings = site.replicas[0].settings
        with running(site), streaming_standby(site.url, durable=True) as url:
            reads = replace(settings, database_url=url, primary_url=site.replicas[0].url)
            mirror = Replica(reads, postgres.directory.parent / "mirror.log")
            try:
                mirror.start()
                return _measured(site, mirror, seconds)
            finally:
                mirror.kill()


def _measured(site: Site, mirror: Replica, seconds: float) -> dict[str, Any]:
    engine = open_engine(site.replicas[0].settings)
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.VIEWER), "benchmark")[0]
    engine.dispose()
    folder = site.database.directory.parent / "jobs"
    jobs = [_job(site, folder, seed) for seed in range(JOBS)]
    reader = Reader(token, site.replicas[0].url, mirror.url)
    with ThreadPoolExecutor(JOBS) as pool:
        training = [pool.submit(job.train) for job in jobs]
        time.sleep(2.0)  # until the standby knows the token and the runs
        reader.read_for(seconds)
        for job in jobs:
            job.script = replace(job.script, steps=job.step)
        tallies = [done.result() for done in training]
    samples = sum(len(tally.acknowledged) for tally in tallies)
    return {
        "samples_acknowledged": samples,
        "at_once": f"{reader.at_once} of {len(reader.behind_ms)}",
        "behind_ms": _spread(reader.behind_ms),
        "lag_s": _spread(reader.lag_s),
        "took_ms": {name: _spread(found) for name, found in sorted(reader.took_ms.items())},
        "refused": dict(reader.refused),
    }


def _job(site: Site, folder: Path, seed: int) -> TrainingJob:
    script = Script(seed, onset=300, steps=10**9)
    return TrainingJob(
        f"load-{seed}", script, site.addresses, site.token, folder, plainly, lambda _: 0,
        pace_s=0.0, random=Random(seed),
    )  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A measured quantity."""

    median: float
    p95: float
    most: float
    count: int


def _spread(found: list[float]) -> dict[str, float]:
    ordered = quantiles(found, n=20) if len(found) > 1 else found * 20
    spread = Spread(median(found), ordered[18], max(found), len(found))
    return {name: round(value, 3) for name, value in asdict(spread).items()}


def main() -> int:
    """Print the table or one JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.standby", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of reading (30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = {"machine": machine(), **measure(options.seconds)}
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"  {name:22} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
