"""A run that waits for a person: made once a file, and copied for every test that begins there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import sqlalchemy as sql

from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.server.conftest import Databases
from tests.server.store.test_commands import spike

_NUMBERS = count()


@pytest.fixture(scope="module")
def spiked_template(databases: Databases) -> str:
    """The name of its database; not older than the file, since time passes for a proposal."""
    name = f"spiked_template_{next(_NUMBERS)}"
    engine = open_engine(Settings(database_url=databases.make(name)))
    spike(engine)
    engine.dispose()
    return name


@pytest.fixture
def spiked(databases: Databases, spiked_template: str) -> Iterator[sql.Engine]:
    """A pool on a database of the test's own, in which a rollback waits for a decision."""
    with databases.lent(spiked_template) as url:
        engine = open_engine(Settings(database_url=url))
        yield engine
        engine.dispose()
