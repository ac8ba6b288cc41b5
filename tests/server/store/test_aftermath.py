"""What is kept and written after an incident has closed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sql

from spikeguard_core.lifecycle.damage import AFTERMATH_STEPS, aftermath_of
from spikeguard_protocol import AttemptEnded, CommandId, ResultState
from spikeguard_server.access.grants import put_policy
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.jobs.postmortems import settle_postmortems
from spikeguard_server.settings import Settings
from spikeguard_server.store.reports import due_reports
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, columns, drawn, healthy, rows, same_number, spiking, value
from tests.server.store.test_commands import ONSET, state_of, waiting

SETTINGS = Settings()
DUE = "select count(*) from incidents where report_due_at is not null"


def recovered(engine: sql.Engine) -> tuple[Job, CommandId, int]:
    """A job whose incident closed after a rollback, and the step until which it is followed."""
    job, command, revision = waiting(engine)
    approve(engine, command, revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    job.roll_back(str(command), 300, at_step=570, position=300)
    job.train(301, 700, segment=1, shift=20, batch=50)
    assert value(engine, "select state from incidents") == "closed"
    return (
        job,
        command,
        int(value(engine, "select record->>'peak_step' from incidents")) + AFTERMATH_STEPS,
    )


def report(engine: sql.Engine) -> tuple[dict[str, object], str]:
    text = " ".join(drawn(engine).decode().split())
    return json.loads(drawn(engine, "json"))["symptoms"], text


def test_the_post_mortem_says_not_yet_and_is_written_once_more_with_the_loss_500_steps_later(
    spiked: sql.Engine,
) -> None:
    job, _, until = recovered(spiked)
    symptoms, text = report(spiked)
    assert symptoms["later_loss"] is None
    assert "not yet" in text
    job.train(701, until - 1, segment=1, shift=20, batch=50)
    assert value(spiked, DUE) == 0
    job.train(until, until + 60, segment=1, shift=20, batch=50)
    assert value(spiked, DUE) == 1
    kept = "select max(step) from incident_samples where segment = 1"
    assert value(spiked, kept) == until
    symptoms, text = report(spiked)
    told = until - AFTERMATH_STEPS + aftermath_of(ONSET)  # no later than the trend is known for
    assert symptoms["later_step"] == told
    assert symptoms["later_loss"] == pytest.approx(healthy(told), abs=0.05)
    assert "not yet" not in text
    assert value(spiked, "select followed_to from runs") is None
    job.train(until + 61, until + 100, segment=1, shift=20, batch=50)
    assert value(spiked, DUE) == 0
    assert value(spiked, kept) == until


def test_a_run_that_spikes_without_end_keeps_post_mortems_only_as_far_as_somebody_reads_them(
    spiked: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """470 bytes of a job left 340 kB, and then 66 kB, for good."""
    monkeypatch.setattr("spikeguard_server.jobs.postmortems.KEPT", 2)
    job = recovered(spiked)[0]
    for begin in (701, 1_301):
        job.train(begin, begin + 19, spiking(begin), segment=1, shift=20, batch=50)
        job.train(begin + 20, begin + 599, segment=1, shift=20, batch=50)
    settle_postmortems(spiked)
    assert value(spiked, "select count(*) from reports") == 0
    first = drawn(spiked, "html")
    for number in (2, 3, 1):
        again = drawn(spiked, "html", number)
    kept = "select distinct incident from reports order by 1"
    assert rows(spiked, kept) == [(1,), (3,)]
    assert again == first


def test_a_post_mortem_is_priced_as_when_it_was_settled_whenever_it_is_drawn(
    spiked: sql.Engine,
) -> None:
    recovered(spiked)
    before = drawn(spiked)
    with spiked.begin() as connection:
        put_policy(connection, "default", {"price_per_hour": 1000.0}, "Ada")
    assert drawn(spiked) == before
    assert b"USD" not in before


def test_a_run_that_ends_before_is_reported_as_far_as_it_came(spiked: sql.Engine) -> None:
    job, _, until = recovered(spiked)
    symptoms, _ = report(spiked)
    assert symptoms["later_step"] is None
    job.train(701, 720, segment=1, shift=20)
    job.send(AttemptEnded("finished"))
    symptoms, _ = report(spiked)
    assert symptoms["later_step"] == until - AFTERMATH_STEPS + aftermath_of(ONSET)


def test_a_run_that_crashed_is_waited_for_until_it_counts_as_ended(spiked: sql.Engine) -> None:
    job, _, _ = recovered(spiked)
    job.send(AttemptEnded("RuntimeError"))
    assert value(spiked, "select followed_to from runs") is not None
    later = datetime.now(UTC) + timedelta(seconds=SETTINGS.ended_after_s + 1)
    with spiked.begin() as connection:
        let_time_pass(connection, run_key(job.message(sequence=1).run_id), SETTINGS, later)
    assert value(spiked, "select followed_to from runs") is None
    assert value(spiked, "select followed_to from incidents") is None


def test_a_result_that_comes_after_the_close_is_judged_and_reported(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    approve(spiked, command, revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    with spiked.begin() as connection:  # the detector's word, which a healing loss would take long
        connection.execute(sql.text("update runs set open_incident = null"))
        closed = "update incidents set state = 'closed', outcome = 'healed', closed_at = now()"
        connection.execute(sql.text(closed))
    job.report(str(command), ResultState.APPLIED, 570)
    assert state_of(spiked, command) == "judged"
    judgement = f"select judgement from commands where number = {command.number}"
    assert "ended as healed" in str(value(spiked, judgement))
    assert value(spiked, DUE) == 1
    _, text = report(spiked)
    assert "ended as healed" in text


def test_a_post_mortem_can_be_written_though_the_new_attempt_never_says_what_it_trains(
    spiked: sql.Engine,
) -> None:
    recovered(spiked)
    new = Job(spiked, attempt="00000000000000b2", age_s=0.0)
    new.post(new.message())
    assert value(spiked, "select current_segment from runs") is None
    report(spiked)
    assert value(spiked, DUE) == 0


def test_a_post_mortem_that_cannot_be_written_is_tried_later_and_later(
    spiked: sql.Engine,
) -> None:
    """And does not stand before the others for ever."""
    recovered(spiked)
    with spiked.begin() as connection:
        connection.execute(sql.text("update incident_revisions set kind = 'no such kind'"))
    waits = []
    for _ in range(3):
        with spiked.begin() as connection:
            connection.execute(sql.text("update incidents set report_due_at = now()"))
        settle_postmortems(spiked)
        wait = "select extract(epoch from report_due_at - clock_timestamp()) from incidents"
        waits.append(float(value(spiked, wait)))
    assert value(spiked, "select count(*) from incidents where reported_at is not null") == 0
    assert waits == pytest.approx([1.0, 2.0, 4.0], abs=0.9)
    with spiked.connect() as connection:
        assert due_reports(connection, 100) == []


def test_of_an_incident_that_never_closes_the_first_samples_of_each_segment_are_kept(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeguard_server.store.samples.KEPT_OF_SEGMENT", 300)
    monkeypatch.setattr("spikeguard_server.store.samples.KEPT", 400)
    job = Job(engine)
    job.start()
    job.train(1, 900, spiking(ONSET), batch=50)
    assert value(engine, "select open_incident from runs") == 1
    kept = rows(engine, "select min(step), max(step), count(*) from incident_samples")
    assert kept == [(ONSET - 200, ONSET + 99, 300)]
    job.roll_back("gpt#1.1", 300, at_step=900, position=300)
    job.train(301, 600, lambda _: 9.0, segment=1, batch=50)
    counts = "select segment, count(*) from incident_samples group by segment order by segment"
    assert rows(engine, counts) == [(0, 300), (1, 100)]
    job.send(AttemptEnded("finished"))
    symptoms, _ = report(engine)
    assert symptoms["peak_step"] is not None


def test_many_signals_of_a_jobs_own_are_kept_with_an_incident_in_no_time(
    engine: sql.Engine,
) -> None:
    """A backlog of 1,500 steps kept Postgres busy past its limit: it was refused for ever."""
    job = Job(engine)
    job.start()
    job.train(1, 160, spiking(ONSET))
    steps = range(161, 1661)
    told = columns(steps, spiking(ONSET))
    own = {f"own{n}": tuple(n + s / 7 if s % 3 else None for s in steps) for n in range(60)}
    own["own0"] = (math.nan, math.inf, -math.inf, *own["own0"][3:])
    job.send(
        replace(told, signals={**told.signals, **own}), columns([steps[0], steps[-1]], healthy)
    )
    which = "from incident_samples where step > 160"
    assert value(engine, f"select count(*) {which}") == len(steps)
    kept = rows(
        engine, f"select loss, extra_names, extra_values, batch_first {which} order by step"
    )
    for place in (0, 1, 2, 3, 700, 1499):
        loss, names, values, first = kept[place]
        assert (loss, first) == (told.signals["loss"][place], steps[place] - 1)
        assert names == sorted(own)
        assert all(
            same_number(value, own[name][place]) for name, value in zip(names, values, strict=True)
        )


def test_an_incident_gets_what_a_message_told_anew_and_no_more_than_a_message_has_room_for(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two old steps told again had each of eight incidents copy all between: 35 s, 256 MB."""
    job = Job(engine)
    job.start()
    job.send(columns(range(1, 600, 2), healthy))

    def spikes(step: int) -> float:
        return healthy(step) + (7.0 if (step - 601) % 30 < 2 else 0.0)

    job.send(columns([1, 2, 598, 599], healthy), columns(range(601, 691), spikes))
    assert value(engine, "select count(*) from incidents where outcome = 'healed'") >= 2
    which = "incident_samples s join incidents i on i.run_id = s.run_id and i.number = s.incident"
    early = f"select step from {which} where step < onset_step - 200 and step < 400 group by 1"
    assert rows(engine, early) == [(2,)]
    kept = "select count(*) from incident_samples"
    before = int(value(engine, kept))
    with monkeypatch.context() as patch:
        patch.setattr("spikeguard_server.ingest.post_incident.MOST_COPIED", 2_000)
        job.send(columns(range(691, 781), spikes))
    assert 0 < int(value(engine, kept)) - before <= 200
    assert value(engine, "select max(step) from samples") == 780


def short_spikes(step: int) -> float:
    """One every 30 steps, each an incident of its own."""
    return healthy(step) + (7.0 if step > 600 and (step - 601) % 30 < 2 else 0.0)


def test_a_run_that_goes_back_again_and_again_has_its_newest_incidents_followed_alone(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never comes to the end of what it follows: 768 incidents, 450 kB of messages, had a copy
    of each step, a message of 204 bytes took 7 s, and another 160 kB took 700 MB of disk."""
    most = 5
    monkeypatch.setattr("spikeguard_server.ingest.post_incident.MOST_FOLLOWED", most, raising=False)
    job = Job(engine)
    job.start()
    job.send(columns(range(1, 601), healthy))
    job.send(columns(range(601, 901), short_spikes))
    for segment in (1, 2):
        job.roll_back("gpt#1.1", 600, at_step=900, segment=segment)
        job.send(columns(range(601, 901), short_spikes, segment=segment))
    followed = "from incidents where followed_to is not null"
    closed = int(value(engine, "select count(*) from incidents where state = 'closed'"))
    assert closed > 2 * most
    assert value(engine, f"select count(*) {followed}") == most
    oldest = int(value(engine, f"select min(number) {followed}"))
    left = f"from incidents where number < {oldest} and report_due_at is not null"
    assert value(engine, f"select count(*) {left}") == oldest - 1
    kept = "select count(*) from incident_samples"
    before = int(value(engine, kept))
    job.send(columns([901], healthy, segment=2))
    assert int(value(engine, kept)) - before <= most + 1  # and the open one


def test_copying_to_incidents_takes_of_the_time_that_a_run_has_for_what_is_stored(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run copies had no limit but that of each message."""
    monkeypatch.setattr("spikeguard_server.ingest.detector_rebuild.MOST_S", 0.05)
    job = Job(engine)
    job.start()
    job.send(columns(range(1, 601), healthy))
    for begin in range(601, 1201, 100):
        job.send(columns(range(begin, begin + 100), short_spikes))
    assert int(value(engine, "select count(*) from incidents")) > 10
    kept = int(value(engine, "select count(*) from incident_samples"))
    assert 250 < kept < 2_000  # of 10,000: a tenth of a millisecond each, and some time comes back
    assert value(engine, "select max(step) from samples") == 1200


def test_a_post_mortem_of_many_signals_of_a_jobs_own_is_made_of_those_that_it_has_room_for(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127 of them at 40,000 steps took 670 MB."""
    monkeypatch.setattr("spikeguard_server.jobs.postmortem_facts.MOST_VALUES", 12_000)
    job = Job(engine)
    job.start()
    steps = range(1, 701)
    told = columns(steps, spiking(ONSET))
    own = {f"own{n}": (1.0,) * len(steps) for n in range(40)}
    job.send(replace(told, signals={**told.signals, **own}), AttemptEnded("finished"))
    assert len(json.loads(drawn(engine, "json"))["curves"]) == 1
    text = " ".join(drawn(engine).decode().split())
    left_out = re.search(r"(\d+) signals of the job's own are left out here", text)
    assert left_out is not None
    assert 30 <= int(left_out[1]) < 40
