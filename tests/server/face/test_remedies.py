"""The cause decides the remedy: in the proposal, on the page that decides, and the next morning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    BatchRange,
    CommandResult,
    ResultState,
    Role,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from spikeguard_protocol.abilities import mitigations_to_settings
from tests.server.face.conftest import VERBS, Job
from tests.server.face.test_judgements import approve, post_mortem
from tests.server.face.test_pages import log_in

if TYPE_CHECKING:
    from tests.server.face.conftest import Live


# --- the same source twice ---


def train(job: Job, steps: int, segment: int, excess: float = 0.0, entropy: float = 3.1) -> None:
    """Train `steps` steps on segment `segment`, which leaves out what those before were told to;
    its last state is saved."""
    samples = job.steps(steps, excess, token_entropy=entropy)
    read = tuple(_read_by(step, segment) for step in samples.steps)
    job.send(
        replace(samples, segment=segment, positions=read), replace(job.saved(), segment=segment)
    )


def _read_by(step: int, segment: int) -> BatchRange:
    """What `step` reads: from segment 1 on the three batches at 400 are left out."""
    first = step - 1 + 3 * (segment > 0 and step > 400)
    return BatchRange(first, first + 1)


def bad_data(job: Job, segment: int) -> dict[str, Any]:
    """Three batches of strange tokens raise the loss for good; answers with the incident."""
    train(job, 3, segment, excess=3.0, entropy=0.2)
    for _ in range(10):
        train(job, 20, segment, excess=3.0)
        incident = job.incident()
        if incident["proposal"] is not None and incident["proposal"]["verb"] == "rollback":
            return incident
    raise AssertionError(f"nothing was proposed: {incident}")


def go_back(job: Job, command: dict[str, Any], segment: int) -> None:
    """By `command`, to a new segment."""
    train(job, 1, segment - 1, excess=3.0)  # its answer delivers the command
    target, here = command["arguments"]["step"], job.step
    parent = SegmentPoint(SegmentId(job.attempt, segment - 1), target)
    job.send(
        SegmentStarted(segment, SegmentReason.ROLLBACK, parent, target, command["id"]),
        CommandResult(command["id"], ResultState.APPLIED, "rolled back", here),
    )
    job.step = target


def name_batches(job: Job, segment: int, onset: int, names: tuple[str, ...]) -> None:
    """What lay in the batch of step `onset`, and in the eight before it."""
    calm = (
        BatchDetail(segment, step, 0, step, (f"shard-3:{step}", f"shard-8:{step}"))
        for step in range(onset - 8, onset)
    )
    job.send(*calm, BatchDetail(segment, onset, 0, onset, names))


def test_a_source_behind_two_incidents_is_named_before_approving_and_the_next_morning(
    live: Live,
) -> None:
    """With what leaving it out costs, and left out where the job can."""
    job = Job(live, "twice")
    job.send(
        AttemptStarted(
            None, 1, (*VERBS, "apply"), "test", tokens_per_step=4096,
            settings=mitigations_to_settings({"tight-clip": "", "swap-data": "20 % a step"}),
        ),
        SegmentStarted(0, SegmentReason.START, None, 0),
    )  # fmt: skip
    for _ in range(4):
        train(job, 100, 0)
    first = bad_data(job, 0)
    assert not [check for check in first["proposal"]["checks"] if "shard" in check]
    name_batches(job, 0, first["onset_step"], ("shard-17:204", "shard-3:9"))
    go_back(job, approve(job), 1)
    assert "Find the source" in job.incident()["remedy"]["follow_ups"][-1]
    for _ in range(3):
        train(job, 100, 1)
    assert job.incident()["outcome"] == "recovered"
    second = bad_data(job, 1)
    assert second["number"] == 2
    (check,) = [text for text in second["proposal"]["checks"] if "incident 1" in text]
    assert "Its sources: shard-17, shard-3." in check
    name_batches(job, 1, second["onset_step"], ("shard-17:88", "shard-3:5"))
    train(job, 1, 1, excess=3.0)
    proposal = job.incident()["proposal"]
    assert proposal["arguments"]["apply"] == "swap-data"
    twice = "The same source twice: shard-17, here and in incident 1."
    cost = "costs less than 6.2% of their data (0 of 16 names in the 8 batches just before)."
    for sentence in (twice, cost):
        assert sentence in proposal["reason"]
    assert not [text for text in proposal["checks"] if "shard" in text]
    with live.client() as browser:
        log_in(browser, live.tokens[Role.OPERATOR], "Ada")
        for page in ("incident/{}/{}/2", f"confirm/{{}}/{{}}/2/{proposal['number']}"):
            assert twice in browser.get(f"/{page.format(job.project, job.run)}").text
    go_back(job, approve(job), 2)
    said = job.incident()["remedy"]["follow_ups"][-1]
    assert said.startswith(twice)
    job.send(AttemptEnded("finished"))
    with live.client(Role.VIEWER) as viewer:
        assert said in post_mortem(job, viewer)
        assert cost in post_mortem(job, viewer)
