"""A map of norms by layer can be read, however many layers there are, and names the first mover."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spikeguard_core.diagnosis.cause.layers import (
    ROWS,
    FirstLayer,
    LayerMap,
    LayerRow,
    layer_map,
)

ONSET = 40


def rows(names: list[str], moved: dict[tuple[str, int], float]) -> list[LayerRow]:
    """Calm norms, with those of `moved` (layer, step) so many times as large."""
    return [
        LayerRow(
            step,
            "grad_norm",
            {n: (1.0 + place) * moved.get((n, step), 1.0) for place, n in enumerate(names)},
        )
        for step in range(ONSET - 20, ONSET + 5)
    ]


def mapped(*asked: Any, **more: Any) -> LayerMap:
    found = layer_map(*asked, **more)
    assert found is not None
    return found


def test_few_layers_are_a_row_each_and_the_first_to_move_is_named() -> None:
    names = ["embedding.weight", "blocks.0.w", "blocks.1.w", "head.weight"]
    moved = {("blocks.1.w", ONSET - 2): 9.0, ("blocks.0.w", ONSET): 30.0}
    found = mapped(rows(names, moved), ONSET)
    assert found.rows == tuple(names)
    assert found.first is not None
    assert (found.first.layer, found.first.step, found.first_row) == ("blocks.1.w", ONSET - 2, 2)
    column = found.steps.index(ONSET - 2)
    assert [row[column] for row in found.ratios] == pytest.approx([1.0, 1.0, 9.0, 1.0])
    assert found.sentence.startswith("Grad norm of blocks.1.w was 9 times its usual size at step ")


def test_layers_that_the_map_shows_as_off_are_told_of_however_much_they_vary() -> None:
    """One whose norm is often three times as large as at other times is the first by no move."""
    noisy = {("b", step): 1.0 + step % 3 for step in range(ONSET - 20, ONSET)}
    found = mapped(rows(["a", "b", "c"], {**noisy, ("a", ONSET): 9.0, ("b", ONSET): 20.0}), ONSET)
    assert "rad norm of a was 9 times" in found.sentence
    assert found.sentence.endswith("1 of the other 2 layers moved with it")


def test_the_first_mover_on_record_is_the_one_that_is_named() -> None:
    """The record was made of another window, and the post-mortem says what is on record."""
    told = rows(["a", "b"], {("a", ONSET): 9.0, ("b", ONSET): 5.0})
    recorded = FirstLayer("grad_norm", "b", ONSET, 5.0, 1, 2, 0)
    found = mapped(told, ONSET, first=recorded)
    assert (found.first, found.first_row) == (recorded, 1)
    assert found.sentence.lower().endswith(recorded.sentence)
    of_another_signal = mapped(told, ONSET, first=replace(recorded, signal="param_norm"))
    assert of_another_signal.first is not None
    assert of_another_signal.first.layer == "a"


def test_a_thousand_layers_are_as_many_rows_as_can_be_read() -> None:
    """A row shows its worst layer, and the first mover is found among the layers."""
    names = ["embedding.weight", *(f"blocks.{b}.{p}" for b in range(100) for p in "abcdefghij")]
    found = mapped(rows(names, {("blocks.57.d", ONSET - 1): 12.0}), ONSET)
    assert len(found.rows) <= ROWS
    assert found.layers == len(names)
    assert found.first is not None
    assert found.first.layer == "blocks.57.d"
    assert found.first_row is not None
    assert "blocks.5" in found.rows[found.first_row]
    assert max(ratio or 0.0 for ratio in found.ratios[found.first_row]) == pytest.approx(12.0)


def test_a_block_is_a_row_where_blocks_are_few() -> None:
    names = [f"blocks.{b}.{p}" for b in range(8) for p in "abcdefgh"]
    found = mapped(rows(names, {}), ONSET)
    assert found.rows == tuple(f"blocks.{b}" for b in range(8))
    assert found.first is None
    assert found.sentence == "No layer left its usual norm ahead of the others"


def test_a_norm_that_is_not_finite_is_infinitely_far() -> None:
    found = mapped(rows(["a", "b"], {("b", ONSET): math.nan}), ONSET)
    assert found.ratios[1][found.steps.index(ONSET)] == math.inf


def test_a_layer_is_held_against_its_newest_norms_and_not_against_the_warm_up() -> None:
    """At first the norms of all layers swing by powers of ten; later none does, and all jump."""
    told = [
        LayerRow(
            step,
            "grad_norm",
            {
                name: 10.0 ** (2 * math.sin(step + place) if step < 40 else 0.0)
                * (8.0 if step == 70 else 1.0)
                for place, name in enumerate("abcd")
            },
        )
        for step in range(75)
    ]
    found = mapped(told, 70)
    assert found.first is not None
    assert (found.first.step, found.first.moved) == (70, 4)
