"""How well spikes are found in real training logs: our monitor beside other people's rules.

`python -m benchmarks.detection [--traces DIR] [--quick] [--notes]`. The logs are not
ours to ship; their folder holds `index.jsonl` (labels, sources) and `csv/`. Scoring: alarms no more
than 50 rows apart are one episode; it hits an excursion if it overlaps [onset - 5, peak + max(20,
recovery)]; early rows and the surroundings of isolated or minor events count neither way.

A rule made most of the labels. Each miss and each false alarm of ours was looked at, and where
anybody would call it otherwise, `label_changes.json` says so with the reason. Both figures are
given: with the labels as published, and with the mended ones.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.detection_rules import RULES, Alarm
from benchmarks.report import command_line, say, show
from spikeguard_replay.judging import samples_of
from spikeguard_replay.reading import read_log

EPISODE_GAP = 50
WORKERS = 2  # processes
CHANGES = Path(__file__).parent / "label_changes.json"
PUBLISHED, MENDED = "labels as published", "mended labels"


@dataclass
class Score:
    """Sums over the series of one group."""

    series: int = 0
    rows: int = 0
    excursions: int = 0
    found: int = 0
    false_alarms: int = 0
    delays: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def table(self) -> dict[str, Any]:
        hits = self.found + self.false_alarms
        recall = self.found / self.excursions if self.excursions else None
        precision = self.found / hits if hits else None
        both = recall is not None and precision is not None and recall + precision > 0
        figures = {
            "series": self.series,
            "rows": self.rows,
            "excursions": self.excursions,
            "found": self.found,
            "false_alarms": self.false_alarms,
            "recall": recall,
            "precision": precision,
            "f1": 2 * recall * precision / (recall + precision) if both else None,  # type: ignore[operator]
            "false_alarms_per_100k": 1e5 * self.false_alarms / max(self.rows, 1),
            "median_delay": statistics.median(self.delays) if self.delays else None,
        }
        return {n: round(v, 4) if isinstance(v, float) else v for n, v in figures.items()}


def groups_of(series: Mapping[str, Any]) -> list[str]:
    """The groups that a series is counted in."""
    name, clean = series["file"], not series["events"]
    groups = ["all event-free"] if clean else []
    if "llama31_8b" in name and "Cisco_hpf_n8" in name:
        return ["Llama-8B", *groups]
    if series["group"] == "algoperf":
        return ["AlgoPerf WMT" if "_wmt" in name else "AlgoPerf other", *groups]
    return [str(series["group"]), *groups]


def score(series: Mapping[str, Any], alarms: Sequence[Alarm]) -> Score:
    """Score one rule's alarms on one series."""
    events = [event for event in series["events"] if event["shape"] == "excursion"]
    result = Score(series=1, rows=series["n_points"], excursions=len(events))
    episodes = _episodes(alarms)
    hit: set[int] = set()
    for event in events:
        first, last = _reach(event)
        found = [e for e in episodes if e[0].row <= last and e[-1].last_row >= first]
        hit.update(id(episode) for episode in found)
        if found:
            result.found += 1
            result.delays.append(max(0, found[0][0].row - int(event["onset_index"])))
        else:
            result.notes.append(f"missed {series['file']} row {event['onset_index']}")
    for episode in episodes:
        if id(episode) not in hit and not _neutral(series, episode):
            result.false_alarms += 1
            result.notes.append(f"false {series['file']} row {episode[0].row} {episode[0].kind}")
    return result


def _episodes(alarms: Sequence[Alarm]) -> list[list[Alarm]]:
    episodes = list[list[Alarm]]()
    for alarm in sorted(alarms, key=lambda alarm: alarm.row):
        if episodes and alarm.row - episodes[-1][-1].last_row <= EPISODE_GAP:
            episodes[-1].append(alarm)
        else:
            episodes.append([alarm])
    return episodes


def _reach(event: Mapping[str, Any]) -> tuple[int, int]:
    recovery = event["recover_points"] or 0
    return int(event["onset_index"]) - 5, int(event["peak_index"]) + max(20, int(recovery))


def _neutral(series: Mapping[str, Any], episode: Sequence[Alarm]) -> bool:
    start = episode[0].row
    if start < min(200, series["n_points"] / 10):
        return True
    spans = [
        (event["onset_index"] - 5, event["onset_index"] + 20)
        for event in series["events"]
        if event["shape"] == "isolated"
    ]
    spans += [(e["onset_index"] - 10, e["onset_index"] + 60) for e in series["minor_events"]]
    spans += [(at, at + 200) for at in _discontinuities(series)]
    return any(first <= start <= last for first, last in spans)


def _discontinuities(series: Mapping[str, Any]) -> list[int]:
    return [
        int(at["index"]) if isinstance(at, dict) else int(at) for at in series["discontinuities"]
    ]


def mended(series: Mapping[str, Any]) -> dict[str, Any]:
    """The same series with the labels that were mended by eye."""
    events, minor = list(series["events"]), list(series["minor_events"])
    for change in json.loads(CHANGES.read_text()):
        if change["file"] != series["file"]:
            continue
        if "add" in change:
            events.append(change["add"])
        if "minor" in change:
            minor.append(change["minor"])
        if "change" in change:
            given = dict(change["change"])
            onset = given.pop("of")
            at = next(row for row, one in enumerate(events) if one["onset_index"] == onset)
            events[at] = {**events[at], **given}
    return {**series, "events": events, "minor_events": minor}


def run_series(
    task: tuple[Path, Mapping[str, Any]],
) -> dict[str, tuple[Score, Score]]:
    """Score every rule on one series, by its labels and by the mended ones."""
    folder, series = task
    samples = samples_of(read_log(folder / series["file"]))
    results = {}
    for rule, alarms_of in RULES.items():
        alarms = alarms_of(samples)
        results[rule] = (score(series, alarms), score(mended(series), alarms))
    return results


Groups = dict[str, Score]


def measure(options: Namespace) -> dict[str, Any]:
    """The whole table: labels -> rule -> group -> figures."""
    index = [json.loads(line) for line in (options.traces / "index.jsonl").open()]
    if options.quick:
        index = [series for series in index if "Cisco_hpf_n8" in series["file"]][:6]
    tables: dict[str, dict[str, Groups]] = {
        labels: {rule: {} for rule in RULES} for labels in (PUBLISHED, MENDED)
    }
    tasks = [(options.traces, series) for series in index]
    with ProcessPoolExecutor(WORKERS) as pool:
        for series, results in zip(index, pool.map(run_series, tasks), strict=True):
            for rule, (published, by_eye) in results.items():
                for group in groups_of(series):
                    tables[PUBLISHED][rule].setdefault(group, Score()).add(published)
                for group in groups_of(mended(series)):
                    tables[MENDED][rule].setdefault(group, Score()).add(by_eye)
    for labels, rules in tables.items() if options.notes else ():
        for group, found in sorted(rules["spikeguard"].items()):
            say("\n".join([f"{labels}, {group}", *found.notes]))
    return {
        labels: {
            rule: {name: found.table() for name, found in sorted(groups.items())}
            for rule, groups in rules.items()
        }
        for labels, rules in tables.items()
    }


def main() -> int:
    parser = command_line("detection", __doc__, "six series only")
    parser.add_argument("--traces", type=Path, default=Path("../shared/data/traces"))
    parser.add_argument("--notes", action="store_true", help="list every miss and false alarm")
    options = parser.parse_args()
    if not (options.traces / "index.jsonl").exists():
        say(f"benchmarks.detection: no index.jsonl in {options.traces}: give --traces DIR")
        return 2
    show(measure(options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
