"""The tables of docs/detection.md that are made of the detector's own constants."""

from __future__ import annotations

from typing import Any

from spikeguard_core.detection import baseline as at, loss_test, noise as of
from spikeguard_core.detection.settings import DetectionSettings

Row = list[str]


def formula() -> list[Row]:
    """How the z of a row is made, term by term."""
    rows, floor = of.NOISE, f"{100 * at.FLOOR_PART:g} %"
    return [
        ["term", "what it is"],
        [
            "`level`",
            f"median of the newest {of.LOCAL} calm rows; of a loss, plus {at.LAG:g} x `slope`, "
            f"and while fewer than {of.YOUNG} rows are known not below where the curve of `noise` "
            "leads",
        ],
        [
            "`slope`",
            f"change a row, from {3 * at.SHORT} rows on: the flattest of the slopes between the "
            f"medians of {at.SHORT} rows each, over {4 * at.SHORT} rows; never above 0",
        ],
        [
            "`noise`",
            f"the mean size of the smaller two thirds of the first differences of the newest "
            f"{rows} calm rows, over √2, or of their third differences, over √20, whichever is "
            f"less; divided by {of.NORMAL_MOVES:g}, so that it is the standard deviation of "
            f"independent normal rows. While fewer than {of.YOUNG} rows are known "
            f"{of.FIT_PART:g} of the same mean of the distances from a curve, over √(1 - "
            "leverage), if that is less "
            f"than {of.FIT_MOST:g} times what third differences give; the curve is the parabola in "
            "the logarithm of a row's number that fits the newest "
            f"{100 * of.FIT_NEWEST:g} % of the rows best (at least {of.FIT_FEWEST}, or all); where "
            f"the largest row is over {of.FIT_LOGS:g} times the smallest, the same of the rows' "
            "logarithms, if the distances are less. "
            f"At least {floor} of the level, {at.LEAST_NOISE:g} of the "
            f"usual noise of the newest {of.BLOCKS * of.BLOCK} rows, {100 * at.FLOOR_START:g} % of "
            "the loss at the start, and 0.29 (1/√12) of the last digit's step where values are "
            "rounded",
        ],
        [
            "`wider`",
            "the larger of two factors, at least 1. Correlated rows lie wider about their level "
            "than neighbours differ: the 90 % quantile of (value - level) / noise over the newest "
            f"{of.RATIOS} rows, divided by {of.NORMAL_90:g}, or from {of.FEWEST_MIDDLE} of them on "
            f"their robust deviation over {of.EVEN_WIDTH:g}, if that is more; at most "
            f"{of.MOST_WIDER:g}. Heavy tails: the {100 * of.TOP_QUANTILE:g} % quantile of the "
            f"highest such ratio of each {of.BLOCK} rows, divided by {of.NORMAL_TOP:g}, at most "
            f"{of.MOST_TAIL:g}, from {of.FEWEST_BLOCKS * of.BLOCK} rows on",
        ],
        ["`scale`", "noise x wider: one deviation"],
        [
            "`z`",
            f"(value - level) / scale; while fewer than {of.YOUNG} calm rows are known, divided by "
            f"1 + {at.YOUNG_PART:g} / rows",
        ],
    ]


def tests() -> list[Row]:
    """What opens an incident."""
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
            f"or three with the middle one at {s.run_z:g}; and {s.usual_part:g} times the highest "
            f"such pair among the calm rows (of which at most {s.usual_most:g} counts), two rows "
            f"alone also {s.pair_below:g} times as far as the deepest calm rows lie below (see "
            f"*outlier batch*), or in the first {of.FEWEST_BLOCKS * of.BLOCK} rows as high as any "
            f"row before; and more than {s.rise_part:g} rises (see *lift*; at most "
            f"{s.rise_most:g} scales); and one of them {s.steep_part:g} times the noise above the "
            f"row before it (while fewer than {of.YOUNG} are known above where the curve leads "
            f"from there), or one at z {s.steep_z:g} and one above the median of the newest "
            f"{at.SHORT} calm rows",
            "spikes, at most one row late, or two where rows lie deep below the level as well",
        ],
        [
            "lift",
            f"the median of {of.LOCAL} rows lies {s.lift_z:g} scales above that of the {at.WIDE} "
            f"before them, or that of {at.NEAR} rows {s.long_lift_z:g} (while few rows are known "
            f"times 1 + ({loss_test.FEW_ROWS:g} / rows)²); and {s.lift_usual:g} times "
            f"the highest such lift among the calm rows; and more than {s.rise_part:g} rises "
            f"or {s.rise_part:g} usual moves, whichever is more (at most {s.rise_most:g} scales). "
            f"Of the moves of the level from {of.BLOCK} rows to the next in the newest {of.BLOCKS} "
            "times, a *rise* is the highest tenth, as of normal noise, at least 0; a *usual move* "
            "is their robust deviation about their course",
            "small rises that stay",
        ],
        [
            "slow rise",
            f"the smoothed loss lies {100 * s.slow_part:g} %, {s.slow_z:g} scales and "
            f"{s.slow_wander:g} usual moves of the level in {of.BLOCK} rows above its own best, "
            f"has done so for {s.slow_rows} rows, and is at its highest since",
            "a run that gets worse without a row that stands out",
        ],
        [
            "downward",
            f"two rows {loss_test.DOWN_Z:g} scales below the level and {loss_test.DOWN_PART:g} "
            "times its size",
            "losses that explode below zero",
        ],
        [
            "zero",
            f"{s.zero_rows} losses of exactly 0 where the level lay {loss_test.ZERO_Z:g} scales "
            "above 0",
            "Hugging Face's Trainer, which logs a loss that is not finite as 0",
        ],
        [
            "outlier batch",
            f"one row {s.outlier_z:g} times the noise above the level, {s.outlier_above:g} times "
            "the second highest, "
            f"{s.outlier_below:g} times as far as the deepest rows of the three deepest of the "
            f"newest {of.BLOCKS} blocks, and {100 * s.outlier_part:g} % of the loss above the "
            "level; the next is back",
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
