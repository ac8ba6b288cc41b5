"""The tables in README and docs that stand on results: `python -m benchmarks.published`.

What a benchmark prints stands in `benchmarks/results/NAME.json`; between the lines `<!-- results:
NAME -->` and `<!-- end of results -->` of a page stands the table made of it. Writes every page
anew; a test holds that none differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.detection import PUBLISHED
from benchmarks.reference.table import table
from spikeguard_core.detection import baseline as at, loss_test, noise as of
from spikeguard_core.detection.settings import DetectionSettings

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
LABELLED = ("Llama-8B", "AlgoPerf WMT", "AlgoPerf other")

Row = list[str]


def pages() -> list[Path]:
    """Every page that may hold such a table."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rendered(page: str) -> str:
    """`page` with its tables as the results have them now."""
    return BLOCK.sub(lambda found: found[1] + _table(found[2]) + found[3], page)


def _table(name: str) -> str:
    head, *rows = TABLES[name]()
    return table(head, rows)


def _result(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def _evidence() -> list[Row]:
    ours, naming, causes = (
        _result("detection")[PUBLISHED]["spikeguard"],
        _result("naming"),
        _result("causes"),
    )
    llama, wmt, other = (ours[name] for name in LABELLED)
    free = ours["all event-free"]
    return [
        ["question", "answer"],
        [
            "spikes found in logs of public runs that nobody here made",
            f"Llama-8B {llama['found']} of {llama['excursions']}, AlgoPerf "
            f"{wmt['found'] + other['found']} of {wmt['excursions'] + other['excursions']}",
        ],
        [
            "false alarms there",
            f"{sum(row['false_alarms'] for row in (llama, wmt, other))} beside those, "
            f"{free['false_alarms']} on {free['series']} event-free series",
        ],
        ["act or wait, 50 steps after the peak, held-out runs", _share(naming["decision"])],
        ["cause, held-out runs, signals as sent by default", _share(causes["as_sent"]["right"])],
        ["cause from loss and gradient norm alone", _share(causes["loss_and_grad_norm"]["right"])],
    ]


def _detection() -> list[Row]:
    found = _result("detection")[PUBLISHED]
    free = "all event-free"
    ours = found["spikeguard"]
    counted = [f"{name}, {ours[name]['excursions']} spikes" for name in LABELLED]
    head = ["rule", *counted, f"false alarms on {ours[free]['series']} event-free series"]
    return [head] + [
        [_bold(rule), *(_found(groups[g]) for g in LABELLED), f"{groups[free]['false_alarms']:,}"]
        for rule, groups in sorted(found.items(), key=lambda item: -_f1(item[1]))
    ]


def _f1(groups: Mapping[str, Any]) -> float:
    return sum(groups[name]["f1"] or 0.0 for name in LABELLED)


def _bold(rule: str) -> str:
    return f"**{rule}**" if rule == "spikeguard" else rule


def _found(row: Mapping[str, Any]) -> str:
    f1 = "-" if row["f1"] is None else f"{row['f1']:.2f}"
    delay = "" if row["median_delay"] is None else f", {row['median_delay']:g}"
    return f"{row['found']} / {row['false_alarms']:,} / {f1}{delay}"


def _naming() -> list[Row]:
    found = _result("naming")
    kinds = [[f"of them {kind}", _share(share)] for kind, share in found["by_kind"].items()]
    return [
        ["", "right"],
        ["kind at the end", _share(found["final_kind"])],
        *kinds,
        ["needs action or heals by itself, 50 steps after the peak", _share(found["decision"])],
        [
            "runs that heal and were called for a rollback at any time",
            _share(found["wrong_rollbacks"]),
        ],
    ]


def _causes() -> list[Row]:
    found = _result("causes")
    signals = {
        "every_step": "every signal every step, token statistics",
        "as_sent": "as sent by default (slow norms every 10 steps)",
        "loss_and_grad_norm": "loss and gradient norm alone",
    }
    return [["signals", "right", "of those named", "Brier score"]] + [
        [
            words,
            _share(found[name]["right"]),
            _share(found[name]["right_of_named"]),
            f"{found[name]['brier']:.3f}",
        ]
        for name, words in signals.items()
    ]


def _share(share: Mapping[str, Any]) -> str:
    low, high = (f"{100 * edge:.0f}" for edge in share["interval"])
    return f"{share['right']} of {share['of']} ({100 * share['share']:.0f} %, {low} to {high})"


def _tests() -> list[Row]:
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
            "small rises that stay, from row 48 on",
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
            "deviations above 0, and no row below a quarter of it",
            "Hugging Face's Trainer, which logs a loss that is not finite as 0",
        ],
        [
            "outlier batch",
            f"one row {s.outlier_z:g} times the noise and {100 * s.outlier_part:g} % of the loss "
            f"above the level, {s.outlier_above:g} times the second highest; the next is back",
            "one batch of odd data; opened and closed at once, asks for nothing",
        ],
    ]


def _curves() -> list[Row]:
    """What `benchmarks.curves` measured of ours."""
    found = _result("curves")
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
        *([name, _counted(share)] for name, share in lines),
        [f"false incidents on {calm['rows']:,} calm rows", false],
    ]


def _curve_rules() -> list[Row]:
    """The same spikes by other rules, as published and with their threshold moved."""
    found = _result("curves")
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


def _counted(share: dict[str, Any]) -> str:
    return f"{share['right']:,} of {share['of']:,} ({100 * share['share']:.1f} %)"


def real_jobs(report: Mapping[str, Any]) -> list[list[str]]:
    """The table: a head, and a line for each way in which rows held, with the rows' titles."""
    by_fault: dict[str, list[str]] = {}
    for row in report["rows"].values():
        by_fault.setdefault(_fault(row), []).append(f"{row['title']} ({row['lines']})")
    return [
        ["did not hold", "jobs (lines added)"],
        *([k, "; ".join(v)] for k, v in by_fault.items()),
    ]


def _fault(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"refused at attach: {row['refused']}"
    if "left_out" in row:
        return f"not run: {row['left_out']}"
    broken = (f"{name}: {cell['said']}" for name, cell in row["cells"].items() if not cell["holds"])
    return "; ".join(broken) or "nothing"


TABLES: dict[str, Callable[[], list[Row]]] = {
    "evidence": _evidence,
    "detection": _detection,
    "tests": _tests,
    "curves": _curves,
    "curve_rules": _curve_rules,
    "naming": _naming,
    "causes": _causes,
    "real_jobs": lambda: real_jobs(_result("real_jobs")),
    "real_jobs_gpu": lambda: real_jobs(_result("real_jobs_gpu")),
}


def main() -> None:
    """Write the tables of every page anew."""
    for page in pages():
        old = page.read_text()
        if (new := rendered(old)) != old:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
