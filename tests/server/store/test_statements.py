"""Which statements stay on one shard where the tables are distributed by run."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sql

from tests.server.store.jobs import Job, spiking, value
from tests.server.store.statements import Heard, Reach, reach_of


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        ("SELECT 1 FROM runs WHERE run_id = %(run)s FOR NO KEY UPDATE", Reach.RUN),
        ("INSERT INTO audit (run_id, number) VALUES (%(a)s, 1)", Reach.RUN),
        ("DELETE FROM notices WHERE notices.run_id = %(run_id_1)s AND id IN (1)", Reach.RUN),
        ("SELECT state FROM runs", Reach.ACROSS),
        ("SELECT c.state FROM commands c JOIN runs r ON c.run_id = r.run_id", Reach.ACROSS),
        ("SELECT version FROM policies WHERE project = %(p)s", Reach.REFERENCE),
        ("SELECT clock_timestamp()", Reach.OTHER),
    ],
)
def test_a_statement_is_told_by_its_tables_and_its_run(text: str, reach: Reach) -> None:
    assert reach_of(text) is reach


def test_every_statement_of_a_message_names_one_run(engine: sql.Engine) -> None:
    """From its first message through a spike to a proposal, and what is sent below SQLAlchemy."""
    heard = Heard()
    heard.add_prepared()
    job = Job(engine)
    with heard.listening(engine):
        job.start()
        job.train(1, 400, batch=100)
        job.train(401, 480, spiking(421))
    assert value(engine, "select count(*) from commands") >= 1
    assert len(heard.by_place) > 40
    across = {
        place: text
        for place, texts in heard.by_place.items()
        for text in texts
        if reach_of(text) is Reach.ACROSS
    }
    assert across == {}


def test_what_statements_share_has_its_columns_before_threads_share_it() -> None:
    """Two threads that ask an alias for its columns at once make two of each, and a statement that
    holds both cannot be compiled: after a start, the first calls were a 500 now and then."""
    program = "\n".join([
        "import importlib, pkgutil, sqlalchemy, spikeguard_server.store as store",
        "for found in pkgutil.walk_packages(store.__path__, 'spikeguard_server.store.'):",
        "    if 'migrations' not in found.name:",
        "        for name, what in vars(importlib.import_module(found.name)).items():",
        "            kinds = sqlalchemy.Alias | sqlalchemy.Subquery | sqlalchemy.CTE",
        "            if isinstance(what, kinds) and 'c' not in vars(what):",
        "                print(found.name, name)",
    ])  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
