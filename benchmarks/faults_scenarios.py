"""Every disturbance: what is done to the servers while jobs train, and until when.

Law: a disturbance knows nothing of what must hold; `faults_site` judges them all alike. Moments
are random and seeded; jobs come in waves of the same scripts until the disturbance is over.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Barrier, Event, Thread
from typing import Any

from benchmarks.faults_job import Mischief, Script, Send, Tally, TrainingJob, plainly
from benchmarks.faults_site import (
    Database,
    Facts,
    Site,
    Verdict,
    judge_attempt,
    judge_run,
    new_site,
    read_attempt,
    read_facts,
    running,
)
from spikeguard_server.store.engine import open_engine

DISK_BYTES = 400 * 2**20
SCRIPTS = tuple(
    Script(seed, onset=230 + 7 * seed, lost=frozenset({20, 21}) if seed == 5 else frozenset())
    for seed in range(6)  # at once
)
_NUMBERS = count(1)
Disturb = Callable[[Site, Event, "Counter[str]"], None]


@dataclass
class Plan:
    """What all disturbances share."""

    database: Database
    kills: int = 50
    restarts: int = 12
    fillings: int = 3
    seconds: float = 25.0  # how long a disturbance without a count of its own lasts
    twins: list[Facts] = field(default_factory=list)  # of the scripts, in their order


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


def undisturbed(plan: Plan) -> list[Facts]:
    """What the database says of every script that nothing disturbs."""
    site = new_site(plan.database, "undisturbed", 1)
    with running(site):
        tallies = _wave(site, "calm", plainly, SCRIPTS, pace_s=0.0)
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


def _wave(
    site: Site,
    wave: str,
    send: Send | None,
    scripts: tuple[Script, ...],
    pace_s: float = 0.02,
    attempts: int = 1,
    kinds: Counter[str] | None = None,
) -> list[Tally]:
    """Every script once, all at the same time; `send` None: with mischief, counted in `kinds`."""
    folder = site.database.directory.parent / "jobs" / site.name
    mischief = Mischief if kinds is None else partial(Mischief, kinds)
    ends = [Barrier(attempts) for _ in scripts]
    jobs = [
        TrainingJob(
            f"{wave}-{script.seed}", script, site.addresses, site.token, folder / str(attempt),
            send or mischief(), pace_s, random=Random(f"{wave}{script.seed}{attempt}"),
            number=attempt, last_word=end,
        )
        for attempt in range(attempts)
        for script, end in zip(scripts, ends, strict=True)
    ]  # fmt: skip
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(TrainingJob.train, jobs))


def _run(
    plan: Plan,
    name: str,
    replicas: int,
    disturb: Disturb,
    *,
    send: Send | None = plainly,
    change: Callable[[Site], None] = lambda _: None,
    kinds: Counter[str] | None = None,
) -> Outcome:
    """Waves of jobs until `disturb` returns, then the truth."""
    site = new_site(plan.database, f"site_{next(_NUMBERS)}", replicas)
    change(site)
    done, over = Counter[str](), Event()
    tallies, names = list[Tally](), list[str]()
    began = time.monotonic()
    with running(site), _disturbed(disturb, site, over, done) as disturber:
        for wave in count():
            tallies += _wave(site, f"w{wave}", send, SCRIPTS, kinds=kinds)
            names += [f"w{wave}-{script.seed}" for script in SCRIPTS]
            if not disturber.is_alive():
                break
    verdict = Verdict()
    for number, found in enumerate(_facts(site, names)):
        twin = plan.twins[number % len(plan.twins)]
        judge_run(verdict, found, twin, tallies[number], names[number])
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


def _kill_one(site: Site, over: Event, done: Counter[str], random: Random) -> None:
    """SIGKILL one replica at a random moment; it comes back."""
    over.wait(random.uniform(0.05, 0.8))
    victim = random.choice(site.replicas)
    victim.kill()
    done["kills"] += 1
    over.wait(random.uniform(0.0, 0.3))
    victim.start()


def kill_replicas(plan: Plan, replicas: int) -> Outcome:
    """SIGKILL to one replica after the other at random moments; each comes back."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random = Random(replicas)
        for _ in range(plan.kills):
            _kill_one(site, over, done, random)

    return _run(plan, f"kill, {replicas} replicas", replicas, disturb)


def bend_messages(plan: Plan) -> Outcome:
    """Messages torn, repeated, out of order and late, answers lost; replicas killed as well."""
    kinds = Counter[str]()

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random = Random(7)
        for _ in range(max(2, plan.kills // 10)):
            _kill_one(site, over, done, random)

    outcome = _run(plan, "bent messages", 2, disturb, send=None, kinds=kinds)
    outcome.done.update(kinds)
    return outcome


def restart_postgres(plan: Plan, *, crash: bool) -> Outcome:
    """Stopped in order, or every process of it killed; each time it comes back."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random = Random(11)
        for _ in range(plan.restarts):
            over.wait(random.uniform(0.5, 2.0))
            (site.database.crash if crash else site.database.stop)()
            done["crashes" if crash else "restarts"] += 1
            over.wait(random.uniform(0.0, 0.5))
            site.database.start()

    return _run(plan, "postgres killed" if crash else "postgres restarted", 2, disturb)


def cut_connections(plan: Plan) -> Outcome:
    """Every connection to Postgres ended, again and again."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random, until = Random(13), time.monotonic() + plan.seconds
        while time.monotonic() < until:
            over.wait(random.uniform(0.05, 0.6))
            done["connections"] += site.database.cut_connections()

    return _run(plan, "connections cut", 2, disturb)


def slow_postgres(plan: Plan) -> Outcome:
    """Everything that serves connections stands still for up to a second and a half."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random, until = Random(17), time.monotonic() + plan.seconds
        while time.monotonic() < until:
            over.wait(random.uniform(0.1, 0.5))
            done["backends frozen"] += site.database.freeze(random.uniform(0.1, 1.5))

    return _run(plan, "postgres slow", 2, disturb)


def stop_tickers(plan: Plan, dead: int) -> Outcome:
    """The tickers of `dead` of two replicas never tick."""

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        del site, over
        done["tickers dead"] = dead

    def change(site: Site) -> None:
        for replica in site.replicas[:dead]:
            replica.settings = replace(replica.settings, tick_s=3600.0)

    return _run(plan, f"{dead} of 2 tickers dead", 2, disturb, change=change)


def fill_disk(plan: Plan) -> Outcome:
    """Postgres on a small disk of its own that is full for a while."""
    place = plan.database.directory.parent / "small"
    place.mkdir(mode=0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    small = Database(place / "pg")

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        del site
        for _ in range(plan.fillings):
            over.wait(2.0)
            _fill(place / "ballast")
            over.wait(4.0)
            (place / "ballast").unlink()
            done["times full"] += 1
            if not small.answers:
                small.stop()
                small.start()
                done["Postgres had given up"] += 1

    try:
        small.start()
        return _run(replace(plan, database=small), "disk full", 2, disturb)
    finally:
        small.stop()
        subprocess.run(["umount", str(place)], check=True)


def _fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def two_attempts(plan: Plan) -> Outcome:
    """Two attempts of each run alive at once, over two replicas that are killed in turn.

    Neither may be given an order while the other lives, and both get their data in.
    """
    site = new_site(plan.database, f"site_{next(_NUMBERS)}", 2)
    done, over, verdict = Counter[str](), Event(), Verdict()
    began = time.monotonic()

    def disturb(site: Site, over: Event, done: Counter[str]) -> None:
        random = Random(19)
        for _ in range(max(2, plan.kills // 10)):
            _kill_one(site, over, done, random)

    with running(site), _disturbed(disturb, site, over, done):
        tallies = _wave(site, "both", plainly, SCRIPTS, attempts=2)
    engine = open_engine(site.replicas[0].settings)
    with engine.connect() as connection:
        for tally in tallies:
            judge_attempt(verdict, read_attempt(connection, tally.run, tally.attempt), tally)
    engine.dispose()
    return Outcome("two attempts", 2, time.monotonic() - began, done, tallies, verdict)


SCENARIOS: dict[str, Callable[[Plan], Outcome]] = {
    "kill-2": lambda plan: kill_replicas(plan, 2),
    "kill-4": lambda plan: kill_replicas(plan, 4),
    "bent-messages": bend_messages,
    "postgres-restarted": lambda plan: restart_postgres(plan, crash=False),
    "postgres-killed": lambda plan: restart_postgres(plan, crash=True),
    "connections-cut": cut_connections,
    "postgres-slow": slow_postgres,
    "disk-full": fill_disk,
    "two-attempts": two_attempts,
    "one-ticker-dead": lambda plan: stop_tickers(plan, 1),
    "all-tickers-dead": lambda plan: stop_tickers(plan, 2),
}
