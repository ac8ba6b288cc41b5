"""Whether the remedy that follows the cause ends better than skipping data whatever the cause.

`python -m benchmarks.remedies [--quick] [--seeds N] [--only again|once] [--json]`. Closed loop:
every command is carried out as soon as it is proposed (`remedies_loop.py`), once with the causes
that were read from the run and once with none, where the policy can only skip batches. Both loops,
and a twin without the fault, share their prefix and their data. What counts is the loss on held-out
text at the last step, over the twin's. A run that was stopped counts as worse than one that was
not; two stopped runs are a tie.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine import machine
from benchmarks.remedies_loop import END, Ended, Loop, job_of, prefix_of
from spikeguard_trainer.data import read_corpus
from spikeguard_trainer.faults import Fault, parse_fault

SAME = 0.02  # nats: differences below are no difference, as `benchmarks.naming` has it
COMES_AGAIN = (  # with the step or the schedule, whenever the run goes over it
    "lr_bump@321:8:60",
    "lr_bump@321:40:100",
    "moment_reset@321:3:10000",
)
ONCE = (  # or with the batches, which are skipped
    "lr_bump@321:10:40",
    "moment_reset@321:3:1e12",
    "weight_noise@321:1:4",
    "weight_scale@321:1:8",
    "bit_flip@321:1:30",
    "nan_grad@321:3",
    "bad_batch.repeated@321:60",
    "gradient_ascent@321:8:40",
)
QUICK = (COMES_AGAIN[:1], ("weight_noise@321:1:4", "bad_batch.repeated@321:60"))


@dataclass(frozen=True, slots=True)
class Pair:
    """One fault and seed, with the remedy of the cause and with skipping data."""

    fault: str
    seed: int
    comes_again: bool
    twin: float  # loss at the end without a fault, nats a byte
    remedy: Ended
    skipping: Ended

    @property
    def saved(self) -> float:
        """Excess loss that the remedy saved, nats; infinite where only the other was stopped."""
        stopped = (self.remedy.stopped_at is not None, self.skipping.stopped_at is not None)
        if stopped == (True, True):
            return 0.0
        if stopped[0] or not math.isfinite(self.remedy.loss):
            return -math.inf
        return math.inf if stopped[1] else self.skipping.loss - self.remedy.loss

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "fault": self.fault,
            "seed": self.seed,
            "comes_again": self.comes_again,
            "saved": str(self.saved) if math.isinf(self.saved) else round(self.saved, 4),
            **{
                name: {
                    "excess": round(ended.loss - self.twin, 4),
                    "stopped_at": ended.stopped_at,
                    "steps_trained": ended.trained,
                    "commands": list(ended.commands),
                    "causes": list(ended.causes),
                }
                for name, ended in (("remedy", self.remedy), ("skipping", self.skipping))
            },
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every pair and print."""
    parser = ArgumentParser(prog="python -m benchmarks.remedies", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three faults, one seed")
    parser.add_argument("--seeds", type=int, default=5, help="paired seeds")
    parser.add_argument("--only", choices=("again", "once"), help="faults that come again, or not")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is too small for more
    again, once = _chosen(options)
    pairs = list(measure(range(1, 2 if options.quick else options.seeds + 1), again, once))
    report = {"steps": END, "machine": machine(), **summarise(pairs)}
    print(json.dumps(report, indent=1) if options.json else _table(report))
    return 0


def _chosen(options: Namespace) -> tuple[Sequence[str], Sequence[str]]:
    """The faults that come again, and the others."""
    again, once = QUICK if options.quick else (COMES_AGAIN, ONCE)
    return ([] if options.only == "once" else again), ([] if options.only == "again" else once)


def measure(seeds: Sequence[int], again: Sequence[str], once: Sequence[str]) -> Iterator[Pair]:
    """Every fault under every seed."""
    corpus = read_corpus(None)
    for seed in seeds:
        job = job_of(corpus, seed)
        prefix = prefix_of(job)

        def run(fault: Fault | None, comes_again: bool, blind: bool) -> Ended:
            return Loop(job, prefix, fault, comes_again, blind).run()  # noqa: B023

        twin = run(None, False, False).loss
        for text in (*again, *once):
            fault, returns = parse_fault(text), text in again
            ended = [run(fault, returns, blind) for blind in (False, True)]
            pair = Pair(text, seed, returns, twin, *ended)
            print(json.dumps(pair.plain()), file=sys.stderr, flush=True)
            yield pair


def summarise(pairs: Sequence[Pair]) -> dict[str, Any]:
    """By fault: how often the remedy was better, no worse and worse."""
    faults = list(dict.fromkeys((pair.fault, pair.comes_again) for pair in pairs))
    return {
        "faults": [
            _of_fault([p for p in pairs if (p.fault, p.comes_again) == fault]) for fault in faults
        ],
        "pairs": [pair.plain() for pair in pairs],
    }


def _of_fault(pairs: Sequence[Pair]) -> dict[str, Any]:
    saved = [pair.saved for pair in pairs]
    acted = [pair for pair in pairs if pair.remedy.commands or pair.skipping.commands]
    return {
        "fault": pairs[0].fault,
        "comes_again": pairs[0].comes_again,
        "pairs": len(pairs),
        "acted_on": len(acted),
        "better": sum(value > SAME for value in saved),
        "worse": sum(value < -SAME for value in saved),
        "excess_with_remedy": _excess([(pair.remedy, pair.twin) for pair in pairs]),
        "excess_with_skipping": _excess([(pair.skipping, pair.twin) for pair in pairs]),
    }


def _excess(ended: Sequence[tuple[Ended, float]]) -> list[str]:
    """Nats over the twin at the end, or where it was stopped."""
    return [
        f"{one.loss - twin:.3f}" if one.stopped_at is None else f"stopped at {one.stopped_at}"
        for one, twin in ended
    ]


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"excess of the held-out loss at step {END}, nats a byte, one figure a seed; better and "
        f"worse by more than {SAME}",
    ]
    for row in report["faults"]:
        comes = "comes again with its steps" if row["comes_again"] else "once, or with its batches"
        lines.append(
            f"{row['fault']} ({comes}): better in {row['better']}, worse in {row['worse']} of "
            f"{row['pairs']}; acted on in {row['acted_on']}"
        )
        lines += [
            f"  with {name}: {', '.join(row[f'excess_with_{name}'])}"
            for name in ("remedy", "skipping")
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
