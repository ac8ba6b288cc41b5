"""Every rank acts at the same step or none does; real processes, one test under torchrun."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.http_server import Answer
from spikeguard.errors import EXIT_HALF_APPLIED
from spikeguard.ranks.replicas import compares_at
from spikeguard.ranks.vote import LOSS_SUM, LOSS_WEIGHT
from spikeguard_protocol import (
    Apply,
    AttemptStarted,
    BatchRange,
    CommandResult,
    Medium,
    Message,
    ResultState,
    Rollback,
    Samples,
    SegmentStarted,
    Stop,
    TargetSaved,
)

from .forks import FORKED, ended, torchrun
from .ranks import begin, play
from .ranks_job import train
from .wire import Wire, served

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("ranks_job.py")
SNAPSHOT_EVERY = CHECKSUM = 10  # of that job
FOREVER = 100_000  # steps
Prepare = Callable[[Wire], None]


class Played(NamedTuple):
    """What the server of a case stored, what each rank saw, and where it ran."""

    wire: Wire
    seen: list[Any]
    folder: Path


def order_once(wire: Wire, after: int, choose: Any) -> None:
    """Order something as soon as `after` steps are stored."""

    def watch(message: Message) -> Answer | None:
        saved = [r for r in message.records if isinstance(r, TargetSaved) and r.step >= after]
        if saved and not wire.orders and message.attempt in wire.messages:
            wire.order(choose(saved[0]))
        return None

    wire.intercept = watch


def goes_back(wire: Wire, after: int = 30) -> None:
    order_once(wire, after, lambda t: Rollback(t.name, t.step))


def switches_on(wire: Wire) -> None:
    order_once(wire, 10, lambda _: Apply("scaled", 10))


CASES: dict[str, tuple[int, Prepare]] = {  # how many steps, and what the server does
    "": (30, lambda _: None),
    "stopped": (FOREVER, lambda wire: order_once(wire, 30, lambda _: Stop())),
    "nan": (33, lambda _: None),
    "flipped": (42, lambda _: None),
    "broken_drain": (45, goes_back),
    "broken_state": (50, lambda _: None),
    "drops": (45, lambda _: None),
    "mitigation": (60, switches_on),
    "broken_mitigation": (45, switches_on),
    "late": (105, partial(goes_back, after=60)),  # the ranks are out of step from there on
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    """Two ranks that play all cases, one after another, each with a server of its own."""
    folder, wires = tmp_path_factory.mktemp("ranks"), dict[str, Wire]()
    with ExitStack() as stack:
        for case, (_, prepare) in CASES.items():
            prepare(wires.setdefault(case, stack.enter_context(served(Wire()))))
        scenes = {
            f"case-{case}": partial(train, steps=steps, case=case, server=wires[case].url)
            for case, (steps, _) in CASES.items()
        }
        told = play(folder, 2, scenes)
        yield {
            case: Played(wire, [rank[f"case-{case}"] for rank in told], folder / f"case-{case}")
            for case, wire in wires.items()
        }


@pytest.fixture(scope="module")
def plain_run(played: dict[str, Played]) -> Played:
    """30 undisturbed steps."""
    return played[""]


def run_ranks(wire: Wire, folder: Path, steps: int, case: str = "") -> tuple[int, list[Any]]:
    """One case in processes of its own, which may end badly: the worse status, what they saw."""
    scenes = {"alone": partial(train, steps=steps, case=case, server=wire.url)}
    status = max((each or 0 for each in ended(begin(folder, 2, scenes))), key=abs)
    return status, seen_by(folder / "alone")


def seen_by(folder: Path) -> list[Any]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_all_ranks_roll_back_at_the_same_step_and_a_restart_by_elastic_keeps_it(
    tmp_path: Path,
) -> None:
    """Rank 1 is killed 30 steps later; the launcher starts both again, without the batches."""
    with served(Wire()) as wire:
        order_once(wire, 30, lambda t: Rollback(t.name, t.step, BatchRange(t.step + 2, t.step + 7)))
        said, given = tmp_path / "said.txt", (str(JOB), str(tmp_path), "120")
        status = torchrun(said, *FORKED, *given, ranks=2, restarts=1, SPIKEGUARD_SERVER=wire.url)
    assert status == 0, said.read_text()[-2000:]
    seen = seen_by(tmp_path)
    first = [(tmp_path / f"first{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    assert first[0][: len(first[1])] == first[1]
    rows = [json.loads(line) for line in first[1]]
    back = [row for row in rows if row[1] < row[0]]
    assert len(back) == 1
    assert rows[-1][1] == back[0][1] + 30
    (applied,) = set(wire.records(CommandResult))  # told again where the server missed it
    assert (applied.state, applied.step) == (ResultState.APPLIED, back[0][0])
    history = [type(r).__name__ for r in wire.history(next(iter(wire.messages)))]
    assert history.index("SegmentStarted", 2) == history.index("CommandResult") + 1
    assert wire.records(SegmentStarted)[1].command == applied.command
    assert seen[0]["resumed"] == seen[1]["resumed"] == rows[-1][1] // 20 * 20
    assert seen[0]["trail"] == seen[1]["trail"]
    assert seen[0]["faults"] == seen[1]["faults"] == {}
    assert seen[0]["trail"][-1][1:3] == [120, 125]


def test_no_thread_of_the_agents_outlives_the_attempt(plain_run: Played) -> None:
    """One of gloo's that still holds a tensor at interpreter shutdown would abort the job."""
    for rank in plain_run.seen:
        before, after = rank["threads"]
        assert "pt_gloo_runloop" in before
        assert [name for name in after if "gloo" in name or "spikeguard" in name] == [
            name for name in before if "gloo" in name
        ]


def test_a_stop_ends_every_rank_at_the_same_step(played: dict[str, Played]) -> None:
    seen = played["stopped"].seen
    assert seen[0]["trail"] == seen[1]["trail"]
    assert seen[0]["ended"] == seen[1]["ended"] == "finished"


def test_a_rank_that_cannot_load_keeps_all_ranks_from_rolling_back(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        goes_back(wire)
        status, seen = run_ranks(wire, tmp_path, 45, "broken_load")
    assert status == 0
    (refused,) = wire.records(CommandResult)
    assert refused.state is ResultState.REFUSED
    assert "OSError: this rank's disk is gone" in refused.reason
    assert seen[0]["trail"] == seen[1]["trail"]
    assert not [row for row in seen[0]["trail"] if row[1] < row[0]]


def test_a_half_applied_rollback_ends_the_attempt_and_the_next_one_keeps_it(tmp_path: Path) -> None:
    """No rank trains on mixed weights; the restart leaves the batches out and says applied."""
    with served(Wire()) as wire:
        order_once(wire, 40, lambda t: Rollback(t.name, t.step, BatchRange(t.step, t.step + 50)))
        status, seen = run_ranks(wire, tmp_path, 100_000, "broken_restore")
        assert status == EXIT_HALF_APPLIED
        assert all("ended" in rank for rank in seen)
        wire.orders.clear()
        wire.intercept = lambda _: None
        status, again = run_ranks(wire, tmp_path, 60)
        assert status == 0
    assert again[0]["resumed"] == again[1]["resumed"] == 40
    assert again[0]["trail"][0][2] == 91
    assert again[0]["trail"] == again[1]["trail"]
    (applied,) = wire.records(CommandResult)
    assert applied.state is ResultState.APPLIED


def test_a_failure_before_the_order_is_written_changes_no_rank(played: dict[str, Played]) -> None:
    """One rank cannot pass on its last samples: nobody goes back, and nobody votes again."""
    wire, seen, folder = played["broken_drain"]
    assert seen[0]["trail"] == seen[1]["trail"]
    assert not [row for row in seen[0]["trail"] if row[1] < row[0]]
    assert "prepare" not in seen[0]["faults"], "what the other rank had sent did not arrive"
    (refused,) = wire.records(CommandResult)
    assert refused.state is ResultState.REFUSED
    assert "begun" not in (folder / "guard/journal.jsonl").read_text()


def test_ranks_that_lost_step_train_on_and_rank_0_tells_what_it_sees(
    played: dict[str, Played],
) -> None:
    """Rank 0 comes to step 25 later than ranks wait for one another: samples go on, marked, nothing
    piles up, the server hears that nothing can be ordered, and an order is refused with a reason.
    """
    wire, seen, _ = played["late"]
    loss, marked = wire.column("loss"), wire.column("ranks_lost_step")
    first, *_, last = wire.records(AttemptStarted)
    (refused,) = set(wire.records(CommandResult))
    assert seen[0]["trail"] == seen[1]["trail"]
    assert sorted(step for _, step in loss) == list(range(1, 106))
    assert 20 <= min(step for _, step in marked) <= 26
    assert {*range(30, 106)} <= {step for _, step in marked}
    assert not {LOSS_SUM, LOSS_WEIGHT} & {n for s in wire.records(Samples) for n in s.signals}
    assert max(rank["held"] for rank in seen) <= 5
    assert "rollback" in first.capabilities
    assert last.capabilities == ()
    assert "lost step at step 2" in last.settings["ranks"]
    assert refused.state is ResultState.REFUSED
    assert "restart the job" in refused.reason


def test_a_state_that_cannot_be_told_on_one_rank_costs_one_checkpoint(
    played: dict[str, Played],
) -> None:
    """Rank 1 runs out of memory where it collects its state: no rank waits for its vote."""
    wire, seen, _ = played["broken_state"]
    assert {r.step for r in wire.records(TargetSaved) if r.medium is Medium.DISK} == {40}
    assert (seen[0]["faults"], seen[1]["faults"]) == ({}, {"snapshot": 1, "checkpoint": 1})


def test_loss_and_norms_are_those_of_the_whole_batch(plain_run: Played) -> None:
    wire = plain_run.wire
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    batch = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8))).float()
    losses = (model(batch) - batch.roll(1, 1)).square().mean(1)
    losses.mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert wire.column("loss")[0, 1] == pytest.approx(losses.mean().item(), rel=1e-5)
    worst = max(losses[:4].mean().item(), losses[4:].mean().item())
    assert wire.column("loss_rank_max")[0, 1] == pytest.approx(worst, rel=1e-5)
    assert wire.column("grad_norm")[0, 1] == pytest.approx(norm.item(), rel=1e-5)
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 31))


def test_optional_signals_are_means_over_ranks_or_the_highest_ranks(
    plain_run: Played,
) -> None:
    wire = plain_run.wire
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    each = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 8))).float()
    worst = (model(each) - each.roll(1, 2)).square().mean(2).max()
    shares = [(b.mul(2.0).long() + 10).flatten().bincount().double() / 32 for b in each]
    entropy = [-float(torch.special.xlogy(p, p).sum()) for p in shares]
    assert wire.column("loss_sequence_max")[0, 1] == pytest.approx(float(worst.detach()))
    assert wire.column("token_entropy")[0, 1] == pytest.approx(sum(entropy) / 2, rel=1e-5)
    assert wire.column("unseen_tokens")[0, 1] == 1.0
    assert 0.0 <= wire.column("unseen_tokens")[0, 10] < 0.2
    assert wire.column("attention_logit_max")[0, 1] == 2.0  # as rank 1 logs it
    assert abs(entropy[0] - entropy[1]) > 1e-3


def test_what_the_loop_logs_is_told_of_rank_0(plain_run: Played) -> None:
    """At step 5 rank 1 logs one name more."""
    wire = plain_run.wire
    first = np.random.default_rng(0).standard_normal((2, 4, 8))[0].mean()
    assert wire.column("router_entropy")[0, 1] == pytest.approx(first, abs=1e-6)
    assert {value for _, value in wire.column("share").items()} == {1.0}
    assert wire.column("only_here") == {}


def compared_steps(steps: int) -> list[int]:
    """At each snapshot, and where `replica_checksum_every` says."""
    return [s for s in range(1, steps + 1) if s % SNAPSHOT_EVERY == 0 or compares_at(s, CHECKSUM)]


def test_ranks_that_stay_equal_are_seen_to_be_so(plain_run: Played) -> None:
    wire, seen, _ = plain_run
    compared = wire.column("replicas_apart")
    assert compared == {(0, step): 0.0 for step in compared_steps(max(compared)[1])}
    assert len(compared) > 5
    assert wire.column("replica_apart") == {}
    assert not [name for s in wire.records(Samples) for name in s.signals if "bits" in name]
    assert seen[0]["faults"] == seen[1]["faults"] == {}


def test_one_flipped_bit_on_one_rank_is_found_and_told_with_its_rank(
    played: dict[str, Played],
) -> None:
    """After step 25, on rank 1, one bit of one weight; nobody stops for it."""
    wire, seen, _ = played["flipped"]
    apart = {step: ranks for (_, step), ranks in wire.column("replicas_apart").items()}
    assert apart == {step: float(step > 25) for step in compared_steps(42)}
    late = [step for step in apart if step > 25]
    assert wire.column("replica_apart") == {(0, step): 1.0 for step in late}
    assert seen[0]["faults"] == seen[1]["faults"] == {"replicas": len(late)}
    assert seen[0]["trail"][-1][0] == seen[1]["trail"][-1][0] == 42


def test_a_nan_on_one_rank_is_dropped_on_all(played: dict[str, Played]) -> None:
    wire, seen, _ = played["nan"]
    assert seen[0]["trail"] == seen[1]["trail"]
    assert wire.column("update_dropped")[0, 30] == 1.0
    assert seen[0]["trail"][28][3] == seen[0]["trail"][29][3]
    assert seen[0]["trail"][30][3] != seen[0]["trail"][29][3]


@pytest.mark.parametrize("case", ["mitigation", "broken_mitigation"])
def test_a_mitigation_is_on_at_the_same_steps_on_all_ranks_or_on_none(
    case: str, played: dict[str, Played]
) -> None:
    wire, seen, _ = played[case]
    if case == "mitigation":
        assert_on_for_ten_steps(wire, seen)
        return
    (told,) = set(wire.records(CommandResult))
    assert seen[0]["trail"] == seen[1]["trail"]
    assert told.state is ResultState.FAILED
    assert "not on rank 1" in told.reason


def assert_on_for_ten_steps(wire: Wire, seen: list[Any]) -> None:
    """Of the gradient's norm a tenth is left while it is on."""
    (told,) = set(wire.records(CommandResult))
    norms = {step: value for (_, step), value in wire.column("grad_norm").items()}
    assert all(rank["trail"] == seen[0]["trail"] for rank in seen)
    assert told.state is ResultState.APPLIED
    first, last = told.step + 1, told.step + 10
    assert norms[first] < 0.4 * norms[first - 1]
    assert norms[last] < 0.4 * norms[last + 1]


def test_updates_dropped_in_a_row_lower_the_rate_on_all_ranks_at_one_step(
    played: dict[str, Played],
) -> None:
    """Four of them: the job's own rule halves the rate for ten steps; nobody was asked."""
    wire, seen, _ = played["drops"]
    (applied,) = set(wire.records(CommandResult))
    rates = {step: rate for (_, step), rate in wire.column("lr").items()}
    assert seen[0]["trail"] == seen[1]["trail"]
    assert applied.state is ResultState.APPLIED
    lowered = [step for step in range(1, 46) if rates[step] < 0.01]
    assert lowered == list(range(applied.step + 1, applied.step + 11))
    assert rates[lowered[0]] == pytest.approx(0.005)
    told = wire.records(AttemptStarted)[0].settings  # by which the server knows what it was
    assert (told["emergency_factor"], told["emergency_steps"]) == ("0.5", "10")
    assert 24 <= applied.step <= 30  # the rows of two steps ago are read, and so are the votes
