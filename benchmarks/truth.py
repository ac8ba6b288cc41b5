"""Whether everything that is said of an incident is true, and whether the remedy fits the cause.

`python -m benchmarks.truth [--quick] [--records DIR] [--case NAME ...]`. The trainer's 10
faults, 4 pairs of them, 2 right after a rollback, one whose proposal is revised, one that nobody
decides on and one whose job is killed meanwhile and started again inside the damage, each decided
on at once, 100 and 350 training steps after the proposal, with 2 seeds: 114 runs of real processes
against one real server. Whoever decides presses the button `READING_STEPS` after reading. Held
against three things that the product has no part in: what was injected (a table written by hand,
`truth_cases.py`), the twin without a fault, and the benchmark's own record of every step.

Time: a run trains 850 steps, and again those that it goes back over, some 1,050 in all; a step
takes 15 ms of a core alone and 20 with agent, server and reader, a start 3 s: about 24 s of a core
a run, 114 runs some 30 minutes of 2 idle cores. Rows whose record lies in DIR are not run again, so
that what was cut short goes on.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import command_line, machine, say, show
from benchmarks.truth_cases import CASES, DELAYS, SEEDS, Case
from benchmarks.truth_rows import Judged, judge
from benchmarks.truth_site import QUICK, Lengths, Record, Site, record_file, twin_of

JOBS = 3  # runs at a time
QUICK_ROWS = (("lr-bump", 0, 0), ("nan-grad", 0, 0))
NAMED_SHARE, OUTCOME_SHARE = 0.8, 0.95  # of the incidents

Row = tuple[str, int, int]  # case, seed, delay
Bar = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, judge all, print; 0 only if every bar is met."""
    options = _options(arguments)
    wanted = _wanted(options)
    kept = options.records
    with nullcontext(str(kept)) if kept else tempfile.TemporaryDirectory(
        prefix="sg-truth-", dir="/tmp"
    ) as place:  # fmt: skip
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # Postgres, run as root, has an account of its own that must pass
        run(folder, wanted, options)
        rows = [judge(Record.load(record_file(folder, *row)), twin_of(folder, row[1]))
                for row in wanted]  # fmt: skip
    found = bars(rows)
    report = {"bars": found, "rows": [asdict(row) for row in rows], "machine": machine()}
    show(report, options)
    for bar in found:
        say(f"{'met   ' if bar['met'] else 'missed'}  {bar['bar']}: {bar['found']}")
    return 0 if all(bar["met"] for bar in found) else 1


def _options(arguments: Sequence[str] | None) -> Namespace:
    parser = command_line("truth", __doc__, "two runs, decided on at once")
    parser.add_argument("--records", type=Path, help="keep what happened here, and go on from it")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    return parser.parse_args(arguments)


def _wanted(options: Namespace) -> list[Row]:
    """Seed by seed and the delays inside, so that a run that is cut short has whole cases."""
    if options.quick:
        return list(QUICK_ROWS)
    return [
        (case.name, seed, delay)
        for seed in SEEDS
        for case in CASES
        if case.name in (options.case or (case.name,))
        for delay in DELAYS
    ]


def run(folder: Path, wanted: Sequence[Row], options: Namespace) -> None:
    """Make the records that are missing."""
    missing = [row for row in wanted if not record_file(folder, *row).exists()]
    if not missing:
        return
    cases: dict[str, Case] = {case.name: case for case in CASES}
    lengths = QUICK if options.quick else Lengths()
    with Site.started(folder, lengths) as site, ThreadPoolExecutor(JOBS) as pool:
        twins = [pool.submit(site.twin, seed) for seed in sorted({seed for _, seed, _ in missing})]
        waiting = [pool.submit(site.row, cases[name], seed, delay) for name, seed, delay in missing]
        for twin in twins:
            twin.result()
        for done in waiting:
            record = done.result()
            said = f"{record.case}, seed {record.seed}, {record.delay} steps later: "
            say(said + f"{len(record.steps)} steps in {record.seconds:.0f} s")


def bars(rows: Sequence[Judged]) -> list[Bar]:
    """Each bar with what was found."""
    incidents = sum(row.incidents for row in rows)
    named = sum(row.named for row in rows)
    needing = [row for row in rows if row.needs_action]
    false = sum(len(row.false) for row in rows)
    wrong = sum(len(row.wrong_cause) + len(row.wrong_remedy) for row in rows)
    proposed = sum(row.proposed for row in needing)
    right = sum(row.outcomes_right for row in rows)
    costly = [row for row in rows if row.wrong_cost]
    unheeded = sum(len(row.missing_followups) for row in rows)
    return [
        _bar("no false statement in any row", f"{false} in {_rows(rows, 'false')} rows", not false),
        _bar(f"{NAMED_SHARE:.0%} of incidents name a cause at 0.6 or more",
             f"{named} of {incidents}", named >= NAMED_SHARE * incidents),
        _bar("there cause and remedy are ones of what was injected", f"{wrong} are not", not wrong),
        _bar("there the follow-ups speak of it", f"{unheeded} do not", not unheeded),
        _bar("runs that need action get a proposal", f"{proposed} of {len(needing)}",
             proposed == len(needing)),
        _bar(f"outcome is the twin's verdict in {OUTCOME_SHARE:.0%}", f"{right} of {incidents}",
             right >= OUTCOME_SHARE * incidents),
        _none("incidents without a fault", rows, "without_fault"),
        _none("approvals refused of what was read", rows, "refused"),
        _none("required sentences missing", rows, "missing"),
        _bar("cost within 10 % of the step log", f"not in {len(costly)} of {len(rows)} rows",
             not costly),
    ]  # fmt: skip


def _bar(what: str, found: str, met: bool) -> Bar:
    return {"bar": what, "found": found, "met": met}


def _none(what: str, rows: Sequence[Judged], name: str) -> Bar:
    count = sum(len(getattr(row, name)) for row in rows)
    return _bar(f"no {what}", f"{count} in {_rows(rows, name)} rows", not count)


def _rows(rows: Sequence[Judged], name: str) -> int:
    return sum(bool(getattr(row, name)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
