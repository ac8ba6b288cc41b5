"""Statements that leave together: their rows, in their own transaction, or none of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from spikeguard_server.store.engine import ask

WRITE = "INSERT INTO projects (name, created_at) VALUES (%(name)s, now())"
READ = "SELECT name FROM projects WHERE name = %(name)s"
NAME, OTHER = {"name": "written"}, {"name": "another"}


def committed(engine: sql.Engine, name: dict[str, str]) -> bool:
    with engine.connect() as connection:
        found = connection.execute(
            sql.text("SELECT count(*) FROM projects WHERE name = :name"), name
        )
        return bool(found.scalar_one())


def write(engine: sql.Engine, *names: dict[str, str]) -> None:
    with engine.begin() as connection:
        ask(connection, *((WRITE, name) for name in names))


def test_each_statement_sees_those_before_it(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        found = ask(connection, (READ, NAME), (WRITE, NAME), (READ, NAME))
        assert found == [[], [], [(NAME["name"],)]]
    assert committed(engine, NAME)


def fail_after(engine: sql.Engine, name: dict[str, str]) -> None:
    with engine.begin() as connection:
        ask(connection, (WRITE, name))
        raise RuntimeError


def test_a_rollback_drops_them(engine: sql.Engine) -> None:
    with pytest.raises(RuntimeError):
        fail_after(engine, NAME)
    assert not committed(engine, NAME)


def test_one_that_fails_fails_all_and_tells_no_value(engine: sql.Engine) -> None:
    write(engine, NAME)
    with pytest.raises(DBAPIError) as failed:
        write(engine, OTHER, NAME)
    assert not committed(engine, OTHER)
    assert "another" not in str(failed.value)
