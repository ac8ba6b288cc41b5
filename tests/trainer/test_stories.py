"""The table of stories is what the faults do."""

from __future__ import annotations

import pytest

from spikeguard_trainer.faults import RANGES, FaultName
from spikeguard_trainer.stories import FAULT_STEP, LATE, STORIES, Course, Fate, fate_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", FaultName)
def test_the_defaults_of_every_fault_have_a_story(name: FaultName) -> None:
    faults = {story.at(7) for story in STORIES}
    assert any(
        f.name is name and (f.length, f.strength) == (RANGES[name].length, RANGES[name].default)
        for f in faults
    )


def test_every_story_tells_what_its_excess_says() -> None:
    for story in STORIES:
        told, late = fate_of([5.0] * 60 + [story.excess] * LATE)
        assert (story.fate is Fate.LINGERS) == (told is Fate.LINGERS), story
        assert late == pytest.approx(story.excess)


def test_a_fate_is_read_from_the_pair() -> None:
    assert fate_of([2.0] * 3 + [0.0] * 200)[0] is Fate.HEALS
    assert fate_of([0.1] * 3 + [0.0] * 200)[0] is Fate.UNMOVED
    assert fate_of([2.0] * 3 + [0.06] * 200)[0] is None
    assert fate_of([2.0] * 3 + [0.5] * 200)[0] is Fate.LINGERS
    assert fate_of([2.0] * 3 + [float("nan")] * 200)[0] is Fate.LINGERS


def test_a_bad_batch_heals_and_a_bumped_learning_rate_lingers() -> None:
    """Two stories trained for real, with another seed than the table's."""
    course = Course.train(seed=1)
    names = ("bad_batch@", "lr_bump@{step}:10")
    told = {s.at(FAULT_STEP): s.fate for s in STORIES if s.fault.startswith(names)}
    for fault, fate in told.items():
        assert fate_of(course.excess(fault))[0] is fate, fault
