"""The database's clock jumps, forwards and back: no run dies of it, and nothing is lost.

The clock is the real database's: `now()` and its kin are found in a schema before Postgres' own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sql

from benchmarks import faults_clock
from spikeguard_core.lifecycle.clock import ClockJump, moment_ago
from spikeguard_protocol import AttemptEnded, Role, RunId
from spikeguard_server.errors import Unready
from spikeguard_server.http.event_feed import EventFeed
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.jobs.housekeeping import tidy
from spikeguard_server.jobs.ticker import tick
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.clock import watch_of
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.tables.core import run_key
from spikeguard_server.store.tokens import NewToken, add_token, find_caller
from tests.server.store.jobs import SECOND, Job, rows, spiking, value
from tests.server.store.test_commands import ONSET, state_of, waiting
from tests.server.store.test_partitions import age, parts, trained

HOUR, DAY, DECADE = 3_600, 86_400, 10 * 365 * 86_400
JUMPS = [HOUR, -HOUR, DAY, -DAY, DECADE, -DECADE]
SETTINGS = Settings(keep_samples_days=30.0, keep_deliveries_days=30.0)


def let_jump(engine: sql.Engine) -> sql.Engine:
    """The same database with a clock that `jump` sets."""
    with engine.begin() as connection:
        faults_clock.let_jump(connection)
    url = engine.url.render_as_string(hide_password=False)
    engine.dispose()
    return open_engine(Settings(database_url=url))


def jump(engine: sql.Engine, seconds: float) -> None:
    with engine.begin() as connection:
        faults_clock.jump(connection, seconds)


@pytest.fixture
def jumpy(engine: sql.Engine) -> Iterator[sql.Engine]:
    """An empty database with a clock that jumps, and a process that has looked at it."""
    made = let_jump(engine)
    tick(made, SETTINGS)
    yield made
    made.dispose()


@pytest.fixture
def jumpy_spiked(spiked: sql.Engine) -> Iterator[sql.Engine]:
    """The same, with a rollback that waits for a decision."""
    made = let_jump(spiked)
    tick(made, SETTINGS)
    yield made
    made.dispose()


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_jump_ends_no_run_expires_no_command_and_delivers_none_twice(
    jumpy_spiked: sql.Engine, seconds: float
) -> None:
    job, command, revision = waiting(jumpy_spiked)
    left = "select extract(epoch from expires_at - shifted.now()) from commands order by number"
    before = value(jumpy_spiked, left)
    jump(jumpy_spiked, seconds)
    with pytest.raises(Unready, match="clock jumped"):  # before the ticker has seen it
        approve(jumpy_spiked, command, revision, "Ada")
    tick(jumpy_spiked, SETTINGS)
    assert value(jumpy_spiked, left) == pytest.approx(before, abs=10)
    assert state_of(jumpy_spiked, command) == "proposed"
    assert rows(jumpy_spiked, "select state from runs") == [("live",)]
    approve(jumpy_spiked, command, revision, "Ada")
    assert str(command) in [o.command for o in job.train(561, 570, spiking(ONSET)).orders]
    jump(jumpy_spiked, -seconds)  # somebody sets it right
    tick(jumpy_spiked, SETTINGS)
    assert state_of(jumpy_spiked, command) == "delivered"
    assert value(jumpy_spiked, left) == pytest.approx(before, abs=10)
    assert rows(
        jumpy_spiked, "select r.state, a.lost from runs r join attempts a using (run_id)"
    ) == [("live", False)]
    assert value(jumpy_spiked, "select state from incidents") == "open"
    assert value(jumpy_spiked, "select count(*) from audit where action = 'clock_jumped'") == 2


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_message_that_meets_a_jump_is_stored_once_when_it_comes_again(
    jumpy: sql.Engine, seconds: float
) -> None:
    job = Job(jumpy)
    job.start()
    job.train(1, 50)
    jump(jumpy, seconds)
    with pytest.raises(Unready):
        job.train(51, 60)
    job.sequence -= 1
    tick(jumpy, SETTINGS)
    job.train(51, 60)
    assert value(jumpy, "select count(*) from samples") == 60
    assert value(jumpy, "select last_sequence from attempts") == job.sequence
    again = Job(jumpy, attempt=SECOND)  # a restart is followed, whatever the dates say
    again.start()
    assert value(jumpy, "select current_attempt from runs") == 2


@pytest.mark.parametrize("seconds", [DECADE, -DECADE])
def test_a_jump_deletes_nothing_and_makes_no_partition_of_another_time(
    jumpy: sql.Engine, seconds: float
) -> None:
    job = trained(jumpy)
    age(jumpy, 21)
    weeks, before = "select starts from weeks order by starts", parts(jumpy)
    known = rows(jumpy, weeks)
    for step in (seconds, -seconds):
        jump(jumpy, step)
        tidy(jumpy, SETTINGS)
        assert parts(jumpy) == before
        assert rows(jumpy, weeks) == known
    assert value(jumpy, "select count(*) from samples") == 400
    job.train(401, 410)


def test_what_is_old_by_the_time_that_went_by_still_goes_after_a_jump(jumpy: sql.Engine) -> None:
    trained(jumpy).send(AttemptEnded("finished"))
    old = age(jumpy, 35)
    jump(jumpy, DECADE)
    tidy(jumpy, SETTINGS)
    assert f"chunks_{old:%Y%m%d}" not in parts(jumpy)


@pytest.mark.parametrize("seconds", [DECADE, -DECADE])
def test_a_server_that_starts_after_a_jump_deletes_nothing_for_it(
    jumpy: sql.Engine, seconds: float
) -> None:
    """Nobody remembers more than when a server last looked."""
    trained(jumpy)
    age(jumpy, 21)
    before = parts(jumpy)
    jump(jumpy, seconds)
    fresh = open_engine(Settings(database_url=jumpy.url.render_as_string(hide_password=False)))
    tidy(fresh, SETTINGS)
    fresh.dispose()
    assert parts(jumpy) == before


@pytest.mark.parametrize("seconds", [DAY, -DECADE])
def test_the_second_replica_that_sees_a_jump_moves_nothing_again(
    jumpy: sql.Engine, seconds: float
) -> None:
    other = open_engine(Settings(database_url=jumpy.url.render_as_string(hide_password=False)))
    watch_of(other).settle(other)
    jump(jumpy, seconds)
    assert watch_of(jumpy).settle(jumpy) == pytest.approx(seconds, abs=5)
    assert watch_of(other).settle(other) == 0.0
    assert value(jumpy, "select count(*) from clock_jumps") == 1
    other.dispose()


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_session_has_as_long_left_as_before(jumpy: sql.Engine, seconds: float) -> None:
    """Nor does a clock that was set back make a sign-in fresh again."""
    secret = b"s" * 32
    with jumpy.begin() as connection:
        made = NewToken(secret, Role.OPERATOR, None, "Ada", "root", 5_000.0, signed_in_s=700.0)
        add_token(connection, made)
    jump(jumpy, seconds)
    tick(jumpy, SETTINGS)
    with jumpy.connect() as connection:
        caller = find_caller(connection, secret)
    assert caller is not None
    assert caller.expires_in_s == pytest.approx(5_000, abs=10)
    assert caller.signed_in_s == pytest.approx(700, abs=10)


@pytest.mark.parametrize("seconds", [DECADE, -HOUR])
def test_whoever_follows_events_is_told_the_next_ones_after_a_jump_and_back(
    jumpy: sql.Engine, seconds: float
) -> None:
    feed, job = EventFeed(jumpy), Job(jumpy)
    feed.start()

    async def follow() -> list[str]:
        follower, told = feed.join(None, None, 1), list[str]()
        await asyncio.wait_for(follower.ready.wait(), 10)
        for step in (0.0, seconds, -seconds):
            jump(jumpy, step)
            tick(jumpy, SETTINGS)
            with jumpy.begin() as connection:
                key = run_key(RunId("default", job.run))
                audit.append(connection, key, actor="test", action=f"{step:g}", subject=job.run)
            entry = await asyncio.wait_for(follower.queue.get(), 10)
            told.append(entry.action if entry is not None else "the end")
        feed.leave(follower)
        return told

    job.start()
    time.sleep(0.1)
    with ThreadPoolExecutor(1) as apart:  # a browser of another test keeps this thread's loop
        told = apart.submit(asyncio.run, follow()).result()
    assert told == ["0", f"{seconds:g}", f"{-seconds:g}"]
    feed.stop()


@pytest.mark.parametrize(
    ("jumps", "days", "expected"),
    [
        ([], 30, -30),
        ([(-3650, -10)], 30, -3670),  # forward by ten years, ten days ago
        ([(-3650, -10)], 5, -5),
        ([(3650, -10)], 30, -30),  # back: dates of both times overlap
        ([(3650, -1), (-2, 3649)], 30, -30),  # forward, and back a day later
    ],
)
def test_an_age_is_the_time_that_went_by_not_the_difference_of_two_dates(
    jumps: list[tuple[int, int]], days: int, expected: int
) -> None:
    """In days from now; of each jump what the clock would have said, and what it said."""
    met = [ClockJump(before * DAY, after * DAY) for before, after in jumps]
    assert moment_ago(met, 0.0, days * DAY) == expected * DAY
