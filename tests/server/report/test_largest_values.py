"""A loss may be as large as a float can be; its incident gets a post-mortem all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spikeguard_server.report import ReportFormat, render
from spikeguard_server.report.facts import PostMortem, RecordedCurve


def _with_losses(facts: PostMortem, *losses: float) -> PostMortem:
    """The story with its first losses, and its peak, as given."""
    first, *rest = facts.curves
    measured = first.values["loss"]
    values = {**first.values, "loss": (*losses, *measured[len(losses) :])}
    curve: RecordedCurve = replace(first, values=values)
    incident = replace(facts.incident, peak_loss=losses[0])
    return replace(facts, curves=(curve, *rest), incident=incident)


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_losses_that_no_axis_can_hold_are_marked_and_the_rest_is_drawn(healed: PostMortem) -> None:
    page = render(_with_losses(healed, 1e308, -1e308), ReportFormat.HTML).decode()
    assert "<svg" in page
    assert "not finite" in page
