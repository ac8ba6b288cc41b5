"""The same samples give the same events, however they arrive; memory does not grow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import Closed, Event, Opened
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.settings import choose
from spikeguard_server.errors import Unready
from spikeguard_server.ingest.detection import freeze, thaw
from tests.domain.detection.curves import descent, opened, plateau, samples, spiked

pytestmark = pytest.mark.slow

ODD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e30, -5.0])


@st.composite
def runs(draw: st.DrawFn) -> list[Sample]:
    """A run with spikes, odd values, missing signals, repeated and backward steps."""
    rows = draw(st.integers(30, 400))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    losses = spiked(descent(rows, seed), draw(st.integers(0, rows)), draw(st.floats(0, 20)), 15)
    for at in draw(st.lists(st.integers(0, rows - 1), max_size=4)):
        losses[at] = draw(ODD)
    gap = draw(st.sampled_from([1, 1, 10, 500]))
    out = []
    for row, loss in enumerate(losses):
        values = {"loss": loss} if rng.random() < 0.97 else {}
        if rng.random() < 0.8:
            values["grad_norm"] = float(np.exp(rng.normal() * 0.3))
        if rng.random() < 0.1:
            values["update_norm"] = float(np.exp(rng.normal() * 0.1))
        if not math.isfinite(loss) and rng.random() < 0.5:
            values["update_dropped"] = 1.0
        back = int(rng.integers(0, 30)) if rng.random() < 0.01 else 0
        out.append(Sample(max(0, (row - back) * gap), values))
    return out


def told(monitor: Monitor, rows: list[Sample], sizes: list[int]) -> list[Event]:
    """Events when `rows` come in batches of `sizes`, over and over."""
    events, at, turn = list[Event](), 0, 0
    while at < len(rows):
        size = sizes[turn % len(sizes)]
        events += monitor.observe(rows[at : at + size])
        at, turn = at + size, turn + 1
    return events


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_quiet_run_in_large_batches_ends_in_the_same_bytes(seed: int) -> None:
    """Stretches of calm rows are taken at once, with heavy tails, gaps and signals now and then."""
    rng = np.random.default_rng(seed)
    gap = (1, 1, 10, 1)[seed]
    rows, step = list[Sample](), 0
    for row in range(2000):
        step += gap if rng.random() < 0.999 else gap * int(rng.integers(2, 3000))
        values = {"loss": 3.0 - 0.1 * math.log(step + 1) + 0.02 * float(rng.standard_t(4))}
        values["grad_norm"] = float(np.exp(0.2 * rng.standard_t(3)))
        if row % 10 == 0:
            values["update_norm"] = float(np.exp(0.1 * rng.normal()))
        if rng.random() < 0.002:
            values["grad_norm" if rng.random() < 0.5 else "loss"] = float(rng.choice([1e7, 1e200]))
        rows.append(Sample(step, values))
    one, many = Monitor(), Monitor()
    assert repr(told(one, rows, [1])) == repr(told(many, rows, [1000, 3, 700]))
    assert freeze(one) == freeze(many)


@pytest.mark.parametrize("seed", range(50, 66))
def test_values_of_any_size_are_judged_row_by_row_and_at_once_alike(seed: int) -> None:
    """Zeros, jumps by forty powers of ten, the largest and the least floats, and none at all."""
    rng, rows = np.random.default_rng(seed), 300
    size = 10.0 ** rng.integers(-30, 30)
    strange = [math.nan, math.inf, -math.inf, 1e308, 5e-324, -1.0]

    def drawn() -> np.ndarray:
        values, kind = np.abs(rng.normal(size=rows)) * size, rng.integers(0, 5)
        if kind == 1:
            values[rng.random(rows) < 0.3] = 0.0
        elif kind == 2:
            values[150:] *= 10.0 ** rng.integers(-40, 40)
        elif kind == 3:
            values[rng.random(rows) < 0.05] = rng.choice(strange)
        elif kind == 4:
            values[150:170] = 1e308
        return values

    columns = {name: drawn() for name in ("loss", "grad_norm", "param_norm", "lr", "step_skipped")}
    columns["loss"] += rng.choice([0.0, 3.0, -3.0, 1e6])
    seen = [Sample(row + 1, {n: float(c[row]) for n, c in columns.items()}) for row in range(rows)]
    one, many = Monitor(), Monitor()
    assert repr(told(one, seen, [1])) == repr(told(many, seen, [300]))
    assert freeze(one) == freeze(many)


def test_every_rule_hears_the_same_in_batches_and_after_a_reload() -> None:
    """Signals of the user's own, overflows, a standstill, ranks that part and lose step, tokens
    that are shown late: all in one run with a spike. What is kept of it stays a few kilobytes."""
    own = {"direction": "both", "opens": "incident"}
    policy = choose({"warm_up_rows": 100, "signals": {"own": own}})
    rng, rows = np.random.default_rng(3), list[Sample]()
    for step, loss in enumerate(spiked(plateau(1_000), 600, 2.0, 15), start=1):
        dropped = float(step in (7, 90, 91) or 200 <= step < 230)
        values = {"loss": loss, "grad_norm": math.inf if dropped else float(np.exp(rng.normal()))}
        values |= {"step_skipped": dropped, "update_dropped": dropped}
        if rng.random() < 0.9:
            values["own"] = rng.normal() * 0.1 + (400 <= step < 420)
        if step % 10 == 9:
            values["unchanged_parameters"] = 0.3 + 0.69 * (300 < step < 340)
        if step % 50 == 0:
            values["replicas_apart"] = float(700 <= step < 800)
        if step > 500:
            values |= {"unseen_tokens": 0.1, "token_entropy": 3.0 + 0.1 * rng.normal()}
        if step > 900:
            values["ranks_lost_step"] = 1.0
        rows.append(Sample(step, values))
    one, many, halted = Monitor(), Monitor(), Monitor()
    for monitor in (one, many, halted):
        monitor.use(policy)
    singly, in_halves, sizes = told(one, rows, [1]), list[Event](), list[int]()
    for first in range(0, len(rows), 13):
        in_halves += halted.observe(rows[first : first + 13])
        kept = freeze(halted)
        halted = thaw(kept)
        sizes.append(len(kept))
    assert repr(singly) == repr(told(many, rows, [640, 660])) == repr(in_halves)
    assert freeze(one) == freeze(many) == freeze(halted)
    assert len({type(event) for event in singly}) >= 4
    assert max(sizes) < 32_000
    assert max(sizes) < 1.5 * sizes[len(sizes) // 2]


@settings(max_examples=10)
@given(runs(), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_batches_change_nothing(rows: list[Sample], sizes: list[int]) -> None:
    """Nor is more than one incident ever open."""
    one, many = Monitor(), Monitor()
    events = told(one, rows, [1])
    assert repr(events) == repr(told(many, rows, sizes))
    assert freeze(one) == freeze(many)
    moves = [type(event).__name__ for event in events if isinstance(event, Opened | Closed)]
    assert moves == ["Opened", "Closed"] * (len(moves) // 2) + ["Opened"] * (len(moves) % 2)


@pytest.mark.parametrize("body", [b"", b"garbage", b"spikeguard-monitor 9999\nx"])
def test_an_unknown_state_is_refused(body: bytes) -> None:
    with pytest.raises(Unready):
        thaw(body)


def test_the_settings_travel_with_the_state() -> None:
    strict = DetectionSettings(
        suspect_z=1000.0, run_z=1000.0, lift_z=1e9, long_lift_z=1e9, slow_part=1e9
    )
    monitor = thaw(freeze(Monitor(DetectorChoice(strict))))
    assert not opened(monitor.observe(samples(spiked(plateau(500), 300, 1.0, 20))))
