"""Spikes are found and named on drawn curves whose truth is known, and calm curves stay calm."""

from __future__ import annotations

import pytest

from benchmarks import curve_draws, curves

pytestmark = pytest.mark.slow
NOT_YET = {
    "recall from 10 deviations and 3 rows",
    "recall from 20 deviations and 3 rows",
    "false incidents in 100,000 calm rows",
}


def test_the_bars_that_are_held_stay_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fifth of what `python -m benchmarks.curves --quick` draws."""
    calm, events = curve_draws.calm_draws(True)[::5], curve_draws.event_draws(True)[::5]
    monkeypatch.setattr(curves, "calm_draws", lambda _: calm)
    monkeypatch.setattr(curves, "event_draws", lambda _: events)
    result = curves.measure(quick=True)
    assert {str(bar["bar"]) for bar in result["bars"] if not bar["held"]} <= NOT_YET
