"""An upgrade from one installed release to another, replica by replica, under load.

Both releases are installed with their own pins. Two replicas of the old one serve jobs of the old
and of the new release's agent; amid spikes, with a command approved and not delivered, `migrate`
of the new release runs and the replicas are replaced one by one, as docs/operations.md tells an
operator. Afterwards the tables must say that nothing acknowledged is missing or there twice,
that every command was carried out once, that runs changed hands once, and that the audit is whole.

    python -m benchmarks.upgrade [--from REVISION] [--to REVISION] [--json]

Revisions: from the one schema on, which no earlier state of development can be migrated to.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from benchmarks.faults_site import Database
from benchmarks.machine import machine
from benchmarks.upgrade_releases import Release, install, last_release
from benchmarks.upgrade_site import Agent, Jobs, Person, Replica, Site, wait_for
from benchmarks.upgrade_truth import Verdict, judge_agent, judge_audit, judge_job, read_audit

PACE_S = 0.15
BOTH_S = 8.0  # both releases serve
SETTLE_S = 6.0  # for what the old release refused a moment ago to be sent again
# name, seed, onset, step at which it waits for us
EARLY = [("early-0", 0, 120, 0), ("early-1", 1, 140, 0)]  # rolled back before the upgrade
HELD = [("held-0", 2, 130, 0), ("held-1", 3, 150, 0)]  # approved before, delivered after
AMID = [("amid-0", 4, 305, 295), ("amid-1", 5, 310, 295)]  # spike while both releases serve
LATE = [("late-0", 6, 335, 320), ("late-1", 7, 340, 320)]  # spike under the new one
AHEAD = [("ahead-0", 8, 160, 0)]  # of the new release's agent, from the first
NEXT = [("next-0", 9, 120, 0), ("next-1", 10, 150, 0)]  # of the new one, after the upgrade
STORY = ("--steps", "600", "--fault", "lr_bump@220:10:40", "--checkpoint-every", "50",
         "--step-time", "0.03")  # fmt: skip
SLOWLY = (*STORY[:-1], "0.2")  # so that it lives through the upgrade


class Upgrade:
    """One upgrade, from the old release's first message to the truth."""

    def __init__(self, site: Site, old: Release, new: Release, say: Callable[[str], None]) -> None:
        self.site, self.old, self.new, self.say = site, old, new, say
        self.verdict = Verdict()
        self.seconds: dict[str, float] = {}
        self._signs = site.place / "signs"
        self._signs.mkdir()
        self._replicas = [Replica(site, name) for name in ("first", "second")]
        site.ask(old, "migrate")
        self._agent_token = site.ask(old, "token", "create", "--role", "agent")
        person = site.ask(old, "token", "create", "--role", "operator", "--person", "Ada")
        held = {name for name, *_ in HELD}
        self._person = Person(self._replicas, person, self._signs, held)
        self._engine = sql.create_engine(site.database_url)

    def run(self) -> None:
        """Everything, in its order."""
        try:
            self._before()
            audit = self._audit()
            self._change()
            self._after(audit)
        finally:
            self._engine.dispose()

    def _before(self) -> None:
        """The old release serves; some spikes are over, two commands wait undelivered."""
        for replica in self._replicas:
            replica.start(self.old)
        self._person.start()
        self._jobs = [
            self._start("old", self.old, EARLY + HELD + AMID + LATE),
            self._start("ahead", self.new, AHEAD),
        ]
        self._young = self._agent("new-on-old", self.new, STORY)
        self._across = self._agent("across", self.old, SLOWLY)
        names = [name for name, *_ in EARLY + HELD + AHEAD]
        wait_for(lambda: self._person.approved.keys() >= {*names}, "approvals", 120.0)
        self._young_steps = self._young.finished()
        self.say(f"the old release serves; approved for {', '.join(self._person.approved)}")

    def _change(self) -> None:
        """As docs/operations.md says: migrate once, then one replica after the other."""
        first, second = self._replicas
        began = time.monotonic()
        self.site.ask(self.new, "migrate")
        self.seconds["migrate"] = time.monotonic() - began
        ready = [replica.status("/readyz") for replica in self._replicas]
        assert ready == [503, 503] or self.old.schema == self.new.schema, ready
        time.sleep(2.0)  # the old release goes on alone on the new schema
        self.seconds["first replica away"] = first.replace(self.new)
        for name, *_ in AMID:
            self._sign(f"go-{name}")
        self._killed_steps = self._across.kill()
        time.sleep(BOTH_S)
        for name, *_ in HELD:
            (self._signs / f"hold-{name}").unlink()
        time.sleep(BOTH_S)
        self.seconds["second replica away"] = second.replace(self.new)
        self.seconds["in all"] = time.monotonic() - began
        self._over_at = time.time() + SETTLE_S
        self.say(f"the new release serves; the agent was killed at step {self._killed_steps[-1]}")

    def _after(self, audit: set[tuple[Any, ...]]) -> None:
        """The new release serves everybody, and is judged."""
        for name, *_ in LATE:
            self._sign(f"go-{name}")
        self._jobs.append(self._start("next", self.new, NEXT))
        across = self._across.start(self.new, self._url, self._agent_token, *STORY)
        elder = self._agent("old-on-new", self.old, STORY)
        across_steps, elder_steps = across.finished(), elder.finished()
        late = [name for name, *_ in AMID + LATE + NEXT]
        wait_for(lambda: self._person.approved.keys() >= {*late}, "later approvals", 120.0)
        wait_for(self._calm, "incidents to close", 120.0)
        self._sign("finish")
        told = [job.finished() for job in self._jobs]
        self._person.stop()
        old_runs = {name for name, *_ in EARLY + HELD + AMID + LATE + AHEAD}
        changed = self.old.state_version != self.new.state_version
        with self._engine.connect() as connection:
            judge_audit(self.verdict, audit, read_audit(connection))
            for job in [job for jobs in told for job in jobs]:
                judge_job(
                    self.verdict, connection, job, since=self._over_at,
                    relearned=changed and job["run"] in old_runs,
                )  # fmt: skip
            for name, steps, again in (
                ("new-on-old", self._young_steps, False),
                ("old-on-new", elder_steps, False),
                ("across", self._killed_steps + across_steps, changed),
            ):
                judge_agent(
                    self.verdict, connection, name, steps, relearned=again,
                    killed=name == "across",
                )  # fmt: skip

    def _calm(self) -> bool:
        """Whether no incident is open."""
        query = sql.text("select count(*) from incidents where state <> 'closed'")
        with self._engine.connect() as connection:
            return not connection.execute(query).scalar_one()

    def _audit(self) -> set[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return read_audit(connection)

    @property
    def _url(self) -> str:
        return self._replicas[0].url

    def _sign(self, name: str) -> None:
        (self._signs / name).touch()

    def _agent(self, name: str, release: Release, options: tuple[str, ...]) -> Agent:
        return Agent(self.site, name).start(release, self._url, self._agent_token, *options)

    def _start(self, name: str, release: Release, jobs: list[tuple[str, int, int, int]]) -> Jobs:
        plan = {
            "name": name,
            "jobs": jobs,
            "addresses": [replica.url for replica in self._replicas],
            "token": self._agent_token,
            "folder": str(self.site.place / "jobs"),
            "signs": str(self._signs),
            "steps": 400,
            "pace_s": PACE_S,
        }
        return Jobs(self.site, release, plan).start()


def measure(options: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """Install, upgrade, judge."""
    place = Path(tempfile.mkdtemp(prefix="sg-upgrade-", dir="/tmp"))
    place.chmod(0o755)  # the account that Postgres runs as must be able to pass
    database, site = Database(place / "pg"), None
    try:
        old = install("old", options.old, place)
        new = install("new", options.new, place)
        say(f"installed {old.shown()} and {new.shown()}")
        database.start()
        site = Site(place, database.url)
        upgrade = Upgrade(site, old, new, say)
        upgrade.run()
    finally:
        if site is not None:
            site.end()
        database.stop()
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    seconds = {name: round(value, 1) for name, value in upgrade.seconds.items()}
    return {
        "machine": machine(),
        "from": old.shown(),
        "to": new.shown(),
        "seconds": seconds,
        "kept": upgrade.verdict.kept,
        **asdict(upgrade.verdict),
    }


def main() -> int:
    """Print what happened; 1 where a promise was broken."""
    parser = ArgumentParser(prog="python -m benchmarks.upgrade", description=__doc__)
    parser.add_argument("--from", dest="old", default=last_release(), help="(the last release)")
    parser.add_argument("--to", dest="new", default="HEAD", help="revision (HEAD)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", action="store_true", help="leave logs and data in /tmp")
    options = parser.parse_args()
    if options.old is None:
        parser.error("there is no release yet: name a revision with --from")
    found = measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"  {name:20} {value}")
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
