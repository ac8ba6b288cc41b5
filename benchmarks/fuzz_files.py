"""Whether a damaged file of the agent's ever ends a job, or loses anything in silence.

The log of what waits for the server, the journal and the records of checkpoints are
made, one file is changed (bits flipped, cut, overwritten, emptied, stretches or files swapped,
removed), and all is read back: by `spikeguard sync` into a server on a real socket, as `attach`
reads the journal, as `spikeguard journal` does, and by a small job that goes on from there. Then
the same with a disk that is full from some byte on.

    python -m benchmarks.fuzz_files [--quick] [--json] [--changes N] [--seed N]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz_files_subjects import (
    SUBJECTS,
    Found,
    FullDisk,
    Store,
    Subject,
    change_one,
    copied,
    serving,
)
from benchmarks.machine import machine

SHARES = {"log": 0.62, "full disk": 0.03, "journal": 0.3, "run": 0.05}
MEMORY = Path("/dev/shm")  # what is tried are bytes: a disk would only take its time
BASES = 12  # made anew for so many of the changes each


def fuzz(
    subject: Subject, changes: int, random: Random, store: Store, place: Path
) -> dict[str, Any]:
    """Change and read back `changes` times; what broke a promise."""
    counts: Counter[str] = Counter()
    broken: list[str] = []
    base = place / "base"
    for number in range(changes):
        if number % max(1, changes // BASES) == 0 or isinstance(subject, FullDisk):
            copied(_empty(place), base)
            subject.make(base, random)
        folder = copied(base, place / "changed")
        files = subject.files(folder)
        what = change_one(random, folder, files) if files else "full disk"
        store.clear()
        found = _judged(subject, folder, store)
        counts["changes"] += 1
        counts["with a loss"] += found.missing > 0
        counts["samples or entries lost"] += found.missing
        counts["samples declared"] += found.declared
        broken += [f"{subject.name} {number}, {what}: {word}" for word in found.wrong]
    return {"subject": subject.name, **counts, "broken": broken}


def _empty(place: Path) -> Path:
    folder = place / "empty"
    folder.mkdir(exist_ok=True)
    return folder


def _judged(subject: Subject, folder: Path, store: Store) -> Found:
    try:
        return subject.judge(folder, store)
    except Exception as error:  # that is what is looked for
        return Found(wrong=[f"raised {error!r}"])


def measure(options: Namespace) -> dict[str, Any]:
    """All subjects."""
    results = []
    began = time.monotonic()
    with (
        serving() as store,
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place,
    ):
        for subject in SUBJECTS:
            random = Random(f"{options.seed} {subject.name}")
            changes = max(1, round(options.changes * SHARES[subject.name]))
            results.append(fuzz(subject, changes, random, store, Path(place)))
    return {
        "machine": machine(),
        "changes": sum(result["changes"] for result in results),
        "seconds": round(time.monotonic() - began, 1),
        "subjects": results,
        "broken": [word for result in results for word in result["broken"]],
    }


def main(arguments: list[str] | None = None) -> int:
    """0 where every promise was kept."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="500 changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.changes = 500 if options.quick else options.changes
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        for result in found["subjects"]:
            print(", ".join(f"{k}: {v}" for k, v in result.items() if k != "broken"))
        print(f"{found['changes']} changes in {found['seconds']} s, broken: {len(found['broken'])}")
        print("\n".join(found["broken"][:40]))
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
