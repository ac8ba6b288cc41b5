"""The tables in README and docs that stand on results: `python -m benchmarks.published`.

What a benchmark prints with `--json` stands in `benchmarks/results/NAME.json`; between the lines
`<!-- results: NAME -->` and `<!-- end of results -->` of a page stands the table made of it. Writes
every page anew; a test holds that none differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import detection_report, real_jobs_report
from benchmarks.detection import PUBLISHED

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
LABELLED = ("Llama-8B", "AlgoPerf WMT", "AlgoPerf other")

Row = list[str]


def pages() -> list[Path]:
    """Every page that may hold such a table."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rendered(page: str) -> str:
    """`page` with its tables as the results have them now."""
    return BLOCK.sub(lambda found: found[1] + table(found[2]) + found[3], page)


def table(name: str) -> str:
    """The table `name`, in Markdown."""
    head, *rows = TABLES[name]()
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


TABLES: dict[str, Callable[[], list[Row]]] = {
    "evidence": _evidence,
    "detection": _detection,
    "tests": detection_report.tests,
    "curves": lambda: detection_report.curves(_result("curves")),
    "curve_rules": lambda: detection_report.rules(_result("curves")),
    "naming": _naming,
    "causes": _causes,
    "real_jobs": lambda: real_jobs_report.lines(_result("real_jobs")),
    "real_jobs_gpu": lambda: real_jobs_report.lines(_result("real_jobs_gpu")),
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
