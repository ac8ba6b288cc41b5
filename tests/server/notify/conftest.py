"""A project with a channel, a spike on a real database, and a server that listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel, ChannelKind
from spikeguard_protocol import CommandId
from spikeguard_server.http.routes.project_settings import ChannelWanted
from spikeguard_server.notify.notifier import Count, Notifier
from spikeguard_server.settings import Settings
from spikeguard_server.store.channels import write_channel
from spikeguard_server.store.conversations import Key, due_conversations
from spikeguard_server.store.engine import open_engine
from tests.server.conftest import Databases
from tests.server.notify.listener import Listener
from tests.server.store.jobs import Job, rows, value
from tests.server.store.test_commands import spike

SECRET = "a secret of more than sixteen signs"
SETTINGS = Settings(notify_networks="127.0.0.0/8", public_url="https://guard.example")


def channel_of(kind: str, name: str = "oncall", **rules: Any) -> Channel:
    """A channel of the default project, of which the rest is as if nothing was said."""
    return ChannelWanted(kind=ChannelKind(kind), **rules).named("default", name)


@dataclass
class Desk:
    """Where a test tells people from."""

    engine: sql.Engine
    job: Job
    settings: Settings = SETTINGS
    count: Count = lambda *_: None

    @property
    def command(self) -> CommandId:
        """The rollback that waits for a decision."""
        number = value(self.engine, "select number from commands where verb = 'rollback'")
        return CommandId.parse(f"gpt#1.{number}")

    @property
    def revision(self) -> int:
        """Of that command."""
        return int(value(self.engine, "select revision from commands where verb = 'rollback'"))

    def channel(self, kind: str = "webhook", name: str = "oncall", **rules: Any) -> None:
        """Write a channel of the default project, as if it had been there from the beginning."""
        with self.engine.begin() as connection:
            write_channel(connection, channel_of(kind, name, **rules), "test")
            connection.execute(
                sql.text(
                    "insert into conversations (run_id, incident, channel, project, pending,"
                    " version, due_at, failures, told, over, given_up)"
                    " select distinct on (run_id, incident) run_id, incident, :name, project,"
                    " pending, version, due_at, 0, 0, false, false from conversations"
                    " where told = 0 on conflict do nothing"
                ),
                {"name": name},
            )
            connection.execute(sql.text("delete from conversations where channel = ''"))

    def webhook(self, listener: Listener, name: str = "oncall", **rules: Any) -> None:
        target = {"url": f"{listener.url}/hook", "secret": SECRET}
        self.channel("webhook", name, target=target, **rules)

    def due(self) -> list[Key]:
        """What is due to be told."""
        with self.engine.begin() as connection:
            return [key for _, key in due_conversations(connection)]

    @property
    def notifier(self) -> Notifier:
        return Notifier(self.settings, self.engine, self.count)

    def tell(self) -> int:
        """Tell everything that is due; how much that was."""
        return len([self.notifier.deliver(key) for key in self.due()])

    def later(self, seconds: float) -> None:
        """As if so many seconds had gone by for every conversation."""
        with self.engine.begin() as connection:
            ago = f"- interval '{seconds} seconds'"
            connection.execute(
                sql.text(
                    f"update conversations set due_at = due_at {ago}, told_at = told_at {ago}, "
                    f"leased_until = leased_until {ago}"
                )
            )

    def log(self, *, untold: bool = False) -> list[tuple[str | None, str, str]]:
        """(channel, result, reason) of the delivery log, oldest first; `untold`: of no channel."""
        which = f"where channel is {'' if untold else 'not'} null"
        query = f"select channel, result, reason from deliveries {which} order by id"
        return [(channel, result, reason) for channel, result, reason in rows(self.engine, query)]

    def results(self) -> list[str]:
        return [result for _, result, _ in self.log()]


STORY = "spiked_story"


@pytest.fixture(scope="session")
def story(databases: Databases) -> int:
    """A database in which a rollback waits; the number of its last message."""
    engine = open_engine(Settings(database_url=databases.make(STORY)))
    job = spike(engine)
    engine.dispose()
    return job.sequence


@pytest.fixture
def desk(databases: Databases, story: int) -> Iterator[Desk]:
    """The desk of a run on which a rollback waits for a person; a database of its own."""
    with databases.lent(STORY) as url:
        engine = open_engine(Settings(database_url=url))
        yield Desk(engine, Job(engine, sequence=story))
        engine.dispose()


@pytest.fixture
def calm(engine: sql.Engine) -> Desk:
    """The desk of a database in which nothing has happened."""
    return Desk(engine, Job(engine))
