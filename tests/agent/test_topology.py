"""Whoever holds what, a bad update is skipped by all ranks or `attach()` refuses the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from . import topology_job
from .forks import ended, fork_ranks

pytestmark = pytest.mark.slow

JOB = Path(topology_job.__file__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks told of every scene."""
    folder = tmp_path_factory.mktemp("ranks")
    assert ended(fork_ranks(JOB, folder, 2)) == [0, 0]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_that_hold_different_parameters_are_refused_on_both(
    ranks: list[dict[str, Any]],
) -> None:
    """With the names, and what to do; a job that comes after is none the worse."""
    one, other = (rank["stages"] for rank in ranks)
    assert one == other
    argument, problem, remedy = one
    assert argument == "model"
    for name in ("rank 0 alone '0.weight', '0.bias'", "rank 1 alone '1.weight', '1.bias'"):
        assert name in problem
    assert "pipeline=" in remedy


def test_stages_that_name_their_parameters_alike_are_known_by_the_mesh(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        argument, problem, _ = rank["stages_named_alike"]
        assert argument == "model"
        assert "'pp'" in problem


def test_what_one_rank_must_refuse_all_do(ranks: list[dict[str, Any]]) -> None:
    """Instead of one that raises and others that wait for it."""
    for rank in ranks:
        argument, problem, _ = rank["frozen_apart"]
        assert argument == "optimizer"
        assert problem.startswith("rank 1: 'first.weight' of the model trains")
        assert rank["wrong_on_one"] == ["optimizer", "rank 1: it trains no parameter of the model"]


def test_parameters_that_no_mesh_of_all_ranks_holds_need_a_word(
    ranks: list[dict[str, Any]],
) -> None:
    """On a mesh of some ranks, or plain beside DTensors; under HSDP the mesh says it all."""
    for rank in ranks:
        for name, lacking in (
            ("small", "'first.weight', 'last.weight'"),
            ("half", "'last.weight'"),
        ):
            argument, problem, remedy = rank["unsaid"][name]
            assert argument == "model"
            assert lacking in problem
            assert "replicated=True" in remedy
        assert rank["unsaid"]["hybrid"] == []


@pytest.mark.parametrize("spread", topology_job.SPREADS)
def test_clipping_is_that_of_one_process_and_a_nan_is_skipped_on_all_ranks(
    ranks: list[dict[str, Any]], spread: str
) -> None:
    """DTensors on two meshes, beside plain parameters, on a mesh of some ranks, and HSDP."""
    for rank in ranks:
        told = rank["trained"][spread]
        assert told["off"] < 1e-6
        assert told["same"] == [False, False, True, False]
        assert told["faults"] == {}


def test_a_loss_that_is_a_dtensor_is_told_whole_and_makes_no_ranks_meet(
    ranks: list[dict[str, Any]],
) -> None:
    """A sum still to be made over the ranks, a mean, and one that both hold."""
    assert ranks[0]["losses"] == {"seen": [4.0, 2.0, 2.0], "met": 0, "faults": {}}
    assert ranks[1]["losses"]["faults"] == {}


def test_ddp_over_some_ranks_makes_no_replicas_of_all(ranks: list[dict[str, Any]]) -> None:
    assert [rank["grouped"] for rank in ranks] == ["report", "report"]


def test_ddp_whose_ranks_step_by_their_own_gradients_makes_no_replicas(
    ranks: list[dict[str, Any]],
) -> None:
    """Local SGD: what one rank skipped the others would make. Its wrapper names the one inside."""
    for rank in ranks:
        told = {"remedy": "Give the one inside, optimizer.optim", "update_skipper": "report"}
        assert rank["local_sgd"] == told


def test_an_optimizer_that_each_rank_has_a_part_of_is_skipped_and_slowed_as_one(
    ranks: list[dict[str, Any]],
) -> None:
    """ZeRO: its state is no rank's to save, so nothing is offered that would need it."""
    for rank in ranks:
        assert rank["partitioned"] == {
            "same": [False, True, False],
            "rates": [0.1, 0.1, 0.05],
            "rewind": "no",
            "faults": {},
        }


def test_a_sharded_state_that_has_not_its_parameters_shape_goes_on_after_a_restart(
    ranks: list[dict[str, Any]],
) -> None:
    """One number for each row, cut as the matrix is, and one for each column, on all ranks."""
    for rank in ranks:
        told = {"begun": 3, "same": True}
        assert rank["by_rows"] == {"ByRows": told, "ByRowsOfItsOwn": told}


def test_what_one_stages_optimizer_cannot_do_is_offered_of_none(
    ranks: list[dict[str, Any]],
) -> None:
    """The table names it, and the record has the parameters of all stages."""
    for rank in ranks:
        unable, rateless = (rank["differing"][way] for way in ("unable", "rateless"))
        assert unable["no"]["skip_update"].startswith("LBFGS on rank 1 takes no found_inf")
        assert "AdamW on rank 1 has no learning rate" in rateless["no"]["scale_lr"]
        assert (unable["scales"], rateless["scales"]) == (True, False)
        assert rank["differing"]["parameters"] == "128"


def test_an_overflow_on_one_stage_skips_and_lowers_the_scale_on_all(
    ranks: list[dict[str, Any]],
) -> None:
    """One stage would skip its step and unscale the next gradients by another number. Fused and
    not; with clipping and the scaler given, and without either."""
    for rank in ranks:
        for way, told in rank["scaled"].items():
            assert told["same"] == [False, True, False, False], way
            assert told["scales"] == [8.0, 4.0, 4.0, 4.0], way
            assert told["faults"] == {}, way


def test_a_stage_that_cannot_measure_its_part_leaves_nobody_waiting_and_clips_alike(
    ranks: list[dict[str, Any]],
) -> None:
    """Its part is missing in the norm of all ranks; the next norm is whole again."""
    one, other = (rank["unmeasured"] for rank in ranks)
    assert one["norms"] == other["norms"] == pytest.approx([8.0, 8.0, 128**0.5, 128**0.5])
    assert one["sizes"][::2] == other["sizes"][::2]
    assert (one["faults"], other["faults"]) == ({}, {"clip": 2})


def test_what_two_stages_hold_a_copy_of_counts_once(ranks: list[dict[str, Any]]) -> None:
    """An embedding tied to the head: clipping, by rule too, is that of one process. Megatron's
    mark says so, or the job; where it is said not to be tied it counts on both."""
    for number, rank in enumerate(ranks):
        told = rank["tied"]
        assert max(told["off"]["marked"], told["off"]["said"]) < 1e-5
        assert told["off"]["not"] > 1e-2
        assert [line.split()[0] for line in told["warned"]] == [[], ["'head.weight'"]][number]
        nowhere, other = told["refused"]
        assert nowhere[0] == other[0] == "tied"
        assert "name 'words.weight' of stage 0: not one parameter each of several" in nowhere[1]
        assert "different shapes: [11, 8] and [8, 8]" in other[1]
