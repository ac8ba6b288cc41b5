"""What is to be written later goes out in its turn, in its own transaction, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from spikeguard_server.store.pipeline import ask, later

WRITE = "INSERT INTO projects (name, created_at) VALUES (%(name)s, now())"
READ = "SELECT name FROM projects WHERE name = %(name)s"
NAME = {"name": "written-later"}


def there(connection: sql.Connection) -> bool:
    found = sql.text("SELECT count(*) FROM projects WHERE name = :name")
    return bool(connection.execute(found, NAME).scalar_one())


def committed(engine: sql.Engine) -> bool:
    with engine.connect() as connection:
        return there(connection)


@pytest.mark.parametrize("asks", [there, lambda c: ask(c, (READ, NAME)) == [[(NAME["name"],)]]])
def test_it_is_there_for_what_is_asked_next(
    engine: sql.Engine, asks: Callable[[sql.Connection], bool]
) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        later(connection, WRITE, NAME)
        assert asks(connection)
        transaction.rollback()
    assert not committed(engine)


def test_it_goes_out_with_the_commit(engine: sql.Engine) -> None:
    write(engine, NAME)
    assert committed(engine)


def fail_after(engine: sql.Engine, *wanted: dict[str, str]) -> None:
    with engine.begin() as connection:
        for values in wanted:
            later(connection, WRITE, values)
        raise RuntimeError


def test_a_rollback_drops_it(engine: sql.Engine) -> None:
    with pytest.raises(RuntimeError):
        fail_after(engine, NAME)
    assert not committed(engine)


def test_it_goes_with_nobody_elses_transaction(engine: sql.Engine) -> None:
    with engine.connect() as connection:
        later(connection, WRITE, NAME)
    for _ in range(3):
        with engine.begin() as connection:
            connection.execute(sql.text("SELECT 1"))
    assert not committed(engine)


def write(engine: sql.Engine, *wanted: dict[str, str]) -> None:
    with engine.begin() as connection:
        for values in wanted:
            later(connection, WRITE, values)


def test_one_that_fails_fails_its_transaction(engine: sql.Engine) -> None:
    write(engine, NAME)
    with pytest.raises(DBAPIError):
        write(engine, {"name": "another"}, NAME)
    with engine.connect() as connection:
        assert ask(connection, (READ, {"name": "another"})) == [[]]
