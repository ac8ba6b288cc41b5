"""The data order: what stands at a position, whoever asks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spikeguard_trainer.data import (
    BatchLoader,
    DataError,
    read_corpus,
    rows_at,
    standard_library,
    validation_batches,
)

TEXT = np.frombuffer(bytes(range(256)) * 64, dtype=np.uint8)


def loader(
    rank: int = 0, world_size: int = 1, micro_batches: int = 1, seed: int = 0
) -> BatchLoader:
    return BatchLoader(
        TEXT,
        rows=8,
        context=16,
        seed=seed,
        rank=rank,
        world_size=world_size,
        micro_batches=micro_batches,
    )


def test_a_position_holds_the_same_batch_however_it_is_reached() -> None:
    walked, jumped = loader(), loader()
    for _ in range(5):
        next(walked)
    jumped.load_state_dict({"position": 5})
    assert torch.equal(next(walked).tokens, next(jumped).tokens)


def test_neither_processes_nor_releases_change_the_order() -> None:
    """Frozen numbers: a checkpoint of today must find its data tomorrow."""
    tokens, _ = rows_at(TEXT, 7, rows=4, context=16, seed=3)
    assert tokens[:, 0].tolist() == [9, 91, 249, 5]


@pytest.mark.parametrize(("world_size", "micro_batches"), [(2, 1), (1, 4), (2, 2), (4, 2)])
def test_ranks_and_micro_batches_together_read_what_one_process_reads(
    world_size: int, micro_batches: int
) -> None:
    whole = loader().micro_batch(3, 0)
    parts = [
        loader(rank, world_size, micro_batches).micro_batch(3, micro)
        for micro in range(micro_batches)
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat([p.tokens for p in parts]), whole.tokens)
    assert torch.equal(torch.cat([p.targets for p in parts]), whole.targets)


def test_the_position_moves_only_when_a_step_is_complete() -> None:
    data = loader(micro_batches=4)
    seen = [(next(data).completes_step, data.state_dict()["position"]) for _ in range(8)]
    assert seen == [(False, 0)] * 3 + [(True, 1)] + [(False, 1)] * 3 + [(True, 2)]


def test_loading_a_state_in_the_middle_of_a_batch_starts_at_its_beginning() -> None:
    data = loader(micro_batches=4)
    next(data)
    data.load_state_dict({"position": 9})
    assert torch.equal(next(data).tokens, loader(micro_batches=4).micro_batch(9, 0).tokens)


def test_targets_are_the_bytes_one_further_on() -> None:
    batch = next(loader())
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])


def test_a_batch_that_does_not_divide_is_refused_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"--batch 8.*multiple of 3"):
        loader(world_size=3)


def test_the_default_text_is_this_pythons_own_library() -> None:
    names = {path.name for path in standard_library()}
    assert {"argparse.py", "dataclasses.py"} <= names
    corpus = read_corpus()
    assert len(corpus.training) > 10 * len(corpus.validation) > 1e6


def test_held_out_files_are_never_trained_on(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_bytes(bytes([number]) * 10)
    corpus = read_corpus(tmp_path)
    assert set(corpus.validation.tolist()) - {ord("\n")} == {19, 39}
    assert not {19, 39} & set(corpus.training.tolist())


def test_the_end_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(bytes(range(200)))
    corpus = read_corpus(file)
    assert bytes(corpus.training) + bytes(corpus.validation) == file.read_bytes()
    assert len(corpus.validation) == 10


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--data .*nothing"):
        read_corpus(tmp_path / "nothing")


def test_too_little_held_out_text_is_refused_with_a_limit() -> None:
    with pytest.raises(DataError, match="at least 1320 bytes"):
        list(validation_batches(TEXT[:10], count=1, rows=2, context=64))
