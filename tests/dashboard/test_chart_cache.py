"""Charts are made once for all who look, and however many are looked at, few are kept."""

from __future__ import annotations

from collections import Counter

from spikeguard_dashboard.chart_cache import EMPTY, ChartCache, rows_of
from spikeguard_dashboard.charts import Spec

ROWS = 1_000


class Maker:
    """Counts what it makes."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def chart(self, name: str) -> Spec:
        self.made[name] += 1
        return {"name": name, "datasets": {"rows": [{"step": step} for step in range(ROWS)]}}


def look(cache: ChartCache, maker: Maker, *names: str) -> list[Spec | None]:
    return [cache.get(name, lambda name=name: maker.chart(name)) for name in names]  # type: ignore[misc]


def test_a_chart_is_made_once_while_it_is_looked_at() -> None:
    cache, maker = ChartCache(3 * (ROWS + EMPTY)), Maker()
    shown = look(cache, maker, "loss", "lr", "loss", "loss")
    assert [one and one["name"] for one in shown] == ["loss", "lr", "loss", "loss"]
    assert maker.made == {"loss": 1, "lr": 1}


def test_of_many_charts_those_that_somebody_looked_at_last_are_kept() -> None:
    cache, maker = ChartCache(3 * (ROWS + EMPTY)), Maker()
    look(cache, maker, *(f"signal-{n}" for n in range(20)), "signal-17")
    look(cache, maker, "new", "signal-17", "signal-19", "signal-18")
    assert maker.made["signal-17"] == maker.made["signal-19"] == 1
    assert maker.made["signal-18"] == 2


def test_one_larger_than_all_that_may_be_kept_is_shown_and_not_kept() -> None:
    cache, maker = ChartCache(ROWS), Maker()
    assert [rows_of(one) for one in look(cache, maker, "loss", "loss")] == [ROWS, ROWS]
    assert maker.made["loss"] == 2


def test_that_there_is_nothing_to_draw_is_kept_too() -> None:
    cache, asked = ChartCache(), list[int]()
    for _ in range(3):
        assert cache.get("none", lambda: asked.append(1)) is None
    assert len(asked) == 1
