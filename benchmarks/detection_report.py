"""The tables of docs/detection.md that are made of the detector's own constants."""

from __future__ import annotations

from typing import Any

from spikeguard_core.detection import baseline as at, loss_test, noise as of
from spikeguard_core.detection.settings import DetectionSettings

Row = list[str]


def tests() -> list[Row]:
    """What opens an incident: of each test the condition that decides most."""
    s = DetectionSettings()
    return [
        ["test", "rule, with defaults", "finds"],
        ["not finite", "loss or gradient norm is NaN or infinite", "overflows, at once"],
        [
            "stuck",
            f"{s.drop_limit} updates in a row were dropped",
            "a run whose weights no longer change",
        ],
        ["ranks apart", "ranks that should hold the same weights differ", "silent corruption"],
        [
            "jump",
            f"{s.confirm_rows} rows in a row at z {s.confirm_z:g}, one of them at {s.suspect_z:g}, "
            f"and {s.usual_part:g} times the highest such pair among the calm rows; one of them "
            "rises steeply from the row before",
            "spikes, one or two rows late",
        ],
        [
            "lift",
            f"the median of {of.LOCAL} rows lies {s.lift_z:g} deviations above that of the "
            f"{at.WIDE} before them, or that of {at.NEAR} rows {s.long_lift_z:g}; and "
            f"{s.lift_usual:g} times the highest such lift among the calm rows",
            "small rises that stay",
        ],
        [
            "slow rise",
            f"the smoothed loss lies {100 * s.slow_part:g} % and {s.slow_z:g} deviations above its "
            f"own best, and has done so for {s.slow_rows} rows",
            "a run that gets worse without a row that stands out",
        ],
        [
            "downward",
            f"two rows {loss_test.DOWN_Z:g} deviations below the level and "
            f"{loss_test.DOWN_PART:g} times its size",
            "losses that explode below zero",
        ],
        [
            "zero",
            f"{s.zero_rows} losses of exactly 0 where the level lay {loss_test.ZERO_Z:g} "
            "deviations above 0",
            "Hugging Face's Trainer, which logs a loss that is not finite as 0",
        ],
        [
            "outlier batch",
            f"one row {s.outlier_z:g} times the noise and {100 * s.outlier_part:g} % of the loss "
            f"above the level, {s.outlier_above:g} times the second highest; the next is back",
            "one batch of odd data; opened and closed at once, asks for nothing",
        ],
    ]


def curves(found: dict[str, Any]) -> list[Row]:
    """What `benchmarks.curves` measured of ours."""
    spikes, calm, kind = found["spikes"], found["calm"], found["kind"]
    before, events = found["loss_before"], found["events"]
    lines = [
        ("spikes from 10 deviations and 3 rows on, within 25 rows", spikes["from 10 deviations"]),
        ("of them, shapes and noise that were kept apart at first", _never(spikes, 10)),
        ("spikes from 20 deviations and 3 rows on", spikes["from 20 deviations"]),
        ("of them, shapes and noise that were kept apart at first", _never(spikes, 20)),
        ("slow rises found in time", events["slow rise"]),
        ("losses of exactly zero", events["zero"]),
        ("second events", events["second"]["second"]),
        ("kind right at the end", kind["all"]),
        ("loss before within 2 % or 2 deviations", before["near"]),
    ]
    false = f"{calm['incidents']} ({calm['per_100k']:.2f} in 100,000 rows)"
    return [
        ["", "drawn curves"],
        *([name, _share(share)] for name, share in lines),
        [f"false incidents on {calm['rows']:,} calm rows", false],
    ]


def rules(found: dict[str, Any]) -> list[Row]:
    """The same spikes by other rules, as published and with their threshold moved."""
    ours, calm = found["spikes"]["from 10 deviations"], found["calm"]
    head = ["rule", "false alarms in 100,000 calm rows", "spikes seen", "seen at our false rate"]
    rows = [["**spikeguard**", f"{calm['per_100k']:.2f}", _percent(ours), _percent(ours)]]
    for name, ways in found["rivals"].items():
        told, equal = ways["as published"], ways["at an equal false rate"]
        seen, fair = (one["from 10 deviations and 3 rows"] for one in (told, equal))
        at_equal = f"{_percent(fair)} (threshold {equal['threshold']:.3g})"
        rows.append([name, f"{told['false_per_100k']:.2f}", _percent(seen), at_equal])
    return [head, *rows]


def _percent(share: dict[str, Any]) -> str:
    return f"{100 * share['share']:.1f} %"


def _never(spikes: dict[str, Any], size: int) -> dict[str, Any]:
    share: dict[str, Any] = spikes[f"from {size} deviations, never tuned"]
    return share


def _share(share: dict[str, Any]) -> str:
    return f"{share['right']:,} of {share['of']:,} ({100 * share['share']:.1f} %)"
