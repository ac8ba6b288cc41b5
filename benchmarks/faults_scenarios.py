"""Every disturbance: what is done to the servers while jobs train, and until when.

Law: a disturbance knows nothing of what must hold; `faults_truth` judges them all alike. Moments
are random and seeded; jobs come in waves of the same scripts until the disturbance is over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from threading import Event, Thread
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.faults_job import Script, Send, Tally, TrainingJob
from benchmarks.faults_site import Database, Site, new_site, running
from benchmarks.faults_truth import Facts, Verdict, judge_run, read_facts
from benchmarks.faults_wire import Mischief, plainly
from spikeguard_server.repository.engine import open_engine

JOBS = 6  # at once
SCRIPTS = tuple(
    Script(seed, onset=230 + 7 * seed, lost=frozenset({20, 21}) if seed == 5 else frozenset())
    for seed in range(JOBS)
)
_NUMBERS = count(1)
_NEWEST = sql.text(
    "select last_sequence from attempts join runs using (run_id) "
    "where attempts.id = :attempt and runs.name = :run"
)
Disturb = Callable[[Site, Event, "Counter[str]"], None]


@dataclass
class Plan:
    """What all disturbances share."""

    database: Database
    kills: int = 50
    quick: bool = False
    twins: list[Facts] = field(default_factory=list)  # of the scripts, in their order

    @property
    def seconds(self) -> float:
        """How long a disturbance without a count of its own lasts."""
        return 6.0 if self.quick else 25.0


@dataclass
class Outcome:
    """What one disturbance did."""

    name: str
    replicas: int
    seconds: float
    done: Counter[str]  # what was done to the site
    tallies: list[Tally]
    verdict: Verdict

    def shown(self) -> dict[str, Any]:
        """Plain values."""
        refused = sum((t.refused for t in self.tallies), Counter[str]())
        verdict = self.verdict
        return {
            "name": self.name,
            "replicas": self.replicas,
            "seconds": round(self.seconds, 1),
            "done": dict(self.done),
            "runs": verdict.runs,
            "messages": sum(t.messages for t in self.tallies),
            "requests_cut": sum(t.cut for t in self.tallies),
            "stored_though_cut": sum(t.stored_though_cut for t in self.tallies),
            "refused": dict(refused),
            "acknowledged_samples": verdict.acknowledged,
            "missing": verdict.missing,
            "twice": verdict.twice,
            "foreign": verdict.foreign,
            "commands": verdict.commands,
            "commands_twice": verdict.commands_twice,
            "orders_repeated": sum(t.repeated for t in self.tallies),
            "runs_that_differ": dict(verdict.differing),
            "audit_holes": verdict.audit_holes,
            "examples": verdict.examples[:5],
        }

    def line(self) -> str:
        """One line of a table."""
        skipped = ("name", "examples")
        words = [f"{k} {v}" for k, v in self.shown().items() if k not in skipped and v != {}]
        return "  ".join(words + self.verdict.examples[:2])


def undisturbed(plan: Plan) -> list[Facts]:
    """What the database says of every script that nothing disturbs."""
    site = new_site(plan.database, "undisturbed", 1)
    with running(site):
        tallies = _wave(site, "calm", plainly, pace_s=0.0)
    facts = _facts(site, [f"calm-{script.seed}" for script in SCRIPTS])
    verdict = Verdict()
    for script, tally, found in zip(SCRIPTS, tallies, facts, strict=True):
        judge_run(verdict, found, found, tally, f"calm-{script.seed}")
        assert any(verb == "rollback" for _, verb, _ in tally.executed), "nothing was rolled back"
        assert {row[1] for row in found.tables["incidents"]} == {"closed"}
    assert verdict.kept, verdict
    return facts


def _facts(site: Site, names: list[str]) -> list[Facts]:
    engine = open_engine(site.replicas[0].settings)
    try:
        with engine.connect() as connection:
            return [read_facts(connection, name) for name in names]
    finally:
        engine.dispose()


def _wave(site: Site, wave: str, send: Send | None, pace_s: float) -> list[Tally]:
    """Every script once, all at the same time; `send` None: with mischief."""
    folder = site.database.directory.parent / "jobs" / f"{site.url.rpartition('/')[2][:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    engine = open_engine(site.replicas[0].settings)

    def newest(job: TrainingJob) -> int:
        with suppress(SQLAlchemyError), engine.connect() as connection:
            return int(
                connection.execute(_NEWEST, {"attempt": job.attempt, "run": job.name}).scalar() or 0
            )
        return 0

    jobs = [
        TrainingJob(
            f"{wave}-{script.seed}", script, site.addresses, site.token, folder,
            send or Mischief(), newest, pace_s, Random(f"{wave}{script.seed}"),
        )
        for script in SCRIPTS
    ]  # fmt: skip
    with ThreadPoolExecutor(JOBS) as pool:
        tallies = list(pool.map(TrainingJob.train, jobs))
    engine.dispose()
    return tallies


def _run(
    plan: Plan,
    name: str,
    replicas: int,
    disturb: Disturb,
    *,
    send: Send | None = plainly,
    pace_s: float = 0.02,
    **settings: float,
) -> Outcome:
    """Waves of jobs until `disturb` returns, then the truth."""
    site = new_site(plan.database, f"site_{next(_NUMBERS)}", replicas, **settings)
    done, over = Counter[str](), Event()
    tallies: list[Tally] = []
    names: list[str] = []
    began = time.monotonic()
    with running(site), _disturbed(disturb, site, over, done) as disturber:
        for wave in count():
            tallies += _wave(site, f"w{wave}", send, pace_s)
            names += [f"w{wave}-{script.seed}" for script in SCRIPTS]
            if not disturber.is_alive():
                break
    verdict = Verdict()
    for number, found in enumerate(_facts(site, names)):
        judge_run(verdict, found, plan.twins[number % JOBS], tallies[number], names[number])
    return Outcome(name, replicas, time.monotonic() - began, done, tallies, verdict)


@contextmanager
def _disturbed(disturb: Disturb, site: Site, over: Event, done: Counter[str]) -> Iterator[Thread]:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            disturb(site, over, done)
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def kill_replicas(plan: Plan, replicas: int) -> Outcome:
    """SIGKILL to one replica after the other at random moments; each comes back."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random = Random(replicas)
        for _ in range(plan.kills):
            over.wait(random.uniform(0.05, 0.8))
            victim = random.choice(site.replicas)
            victim.kill()
            done["kills"] += 1
            over.wait(random.uniform(0.0, 0.3))
            victim.start()

    return _run(plan, f"kill, {replicas} replicas", replicas, disturb)


SCENARIOS: dict[str, Callable[[Plan], Outcome]] = {
    "kill-2": lambda plan: kill_replicas(plan, 2),
    "kill-4": lambda plan: kill_replicas(plan, 4),
}
