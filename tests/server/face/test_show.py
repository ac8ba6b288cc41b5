"""`spikeguard show`, `watch` and `snooze` against a running server."""

from __future__ import annotations

import re
from urllib.parse import unquote

from spikeguard_protocol import AttemptEnded
from tests.server.face.conftest import Job, Typed
from tests.server.face.test_judgements import approve, roll_back


def test_an_incident_on_one_screen_says_what_why_what_to_do_and_how(
    spiked: Job, typed: Typed
) -> None:
    spiked.send()  # it may have said nothing for minutes
    found = spiked.incident()
    said = typed("show", f"{spiked.run}#1")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40  # a terminal of a laptop
    assert lines[0].startswith(f"{spiked.run}#1: {found['title']} ({found['confidence']:.0%})")
    unwrapped = " ".join(said.split())
    assert f"{found['summary']}." in unwrapped
    assert re.search(r"^cause +\S", said, re.M)
    assert re.search(r"^propose +roll back to step ", said, re.M)
    assert re.search(r"^costs +\d+ steps", said, re.M)
    assert re.search(r"^answer +within ", said, re.M)
    assert f"decide   spikeguard approve '{spiked.run}#1'" in lines
    assert f"^ onset, step {found['onset_step']}" in said


def test_after_a_rollback_the_branch_that_is_kept_is_drawn_first(job: Job, typed: Typed) -> None:
    """The undone one stood three nats above."""
    job.spike()
    roll_back(job, approve(job), 470)
    for words in (("show", f"{job.run}#1"), ("show", job.run)):
        said = typed(*words)
        top = said[said.index("\nloss\n") :].split("branch that was undone")[0]
        highest = max(map(float, re.findall(r"^ *(\d\.\d+) ", top, re.M)))
        assert highest < 4.0, said
    undone = typed("show", f"{job.run}#1").split("loss of the branch that was undone")[1]
    assert max(map(float, re.findall(r"^ *(\d\.\d+) ", undone, re.M))) > 5.0
    assert "^ onset, step " in undone


def test_a_run_on_one_screen_leads_to_what_waits_for_somebody(spiked: Job, typed: Typed) -> None:
    said = typed("show", spiked.run)
    assert said.startswith(f"{spiked.run}: ")
    assert f"open: '{spiked.run}#1', waits for your decision" in said
    assert re.search(r"^propose +roll back to step ", said, re.M)
    assert "onset, step " in said


def test_a_run_is_followed_until_it_ends(job: Job, typed: Typed) -> None:
    job.train(30)
    assert "live" in typed("watch", job.run, "--once")
    job.send(AttemptEnded("done"))
    assert "ended" in typed("watch", job.run, "--every", "0.2")


def test_a_browser_is_led_to_the_decision_or_else_to_the_incident(job: Job, typed: Typed) -> None:
    proposal = job.spike().incident()["proposal"]
    confirm = f"/confirm/default/{job.run}/1/{proposal['number']}"
    assert (
        unquote(typed("open", "--sign-in", f"{job.run}#1"))
        .splitlines()[0]
        .endswith(f"next={confirm}")
    )
    typed("reject", f"{job.run}#1", "--reason", "we wait")
    first_view = f"/incident/default/{job.run}/1"
    assert (
        unquote(typed("open", "--sign-in", f"{job.run}#1"))
        .splitlines()[0]
        .endswith(f"next={first_view}")
    )
