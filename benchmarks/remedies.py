"""Whether the remedy that follows the cause ends better than the rule of most guards.

`python -m benchmarks.remedies [--quick] [--seeds N]`.
Closed loop: every command is carried out as soon as it is proposed (`remedies_loop.py`), and by the
rival a loss 6 deviations high goes back and skips. Both loops, and a twin without the fault, share
their prefix and their data. What counts is the loss on held-out text at the last step, over the
twin's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from benchmarks.remedies_loop import (
    END,
    PREFIX,
    Ended,
    Loop,
    RivalLoop,
    job_of,
    prefix_of,
)
from benchmarks.report import command_line, machine, say, show
from spikeguard_trainer.data import Corpus, read_corpus
from spikeguard_trainer.faults import parse_fault

HARDER = "bad_batch@321:400:0.15"  # a part of each batch is noise from then on
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
    HARDER,
)
SURE = ("weight_noise", "weight_scale", "bit_flip", "moment_reset")  # where the cause is at once
THROWN, WORSE = 25, 0.005  # steps, nats
QUICK = (COMES_AGAIN[:1], ("weight_noise@321:1:4", HARDER))


@dataclass(frozen=True, slots=True)
class Pair:
    """One fault and seed, with the remedy of the cause and under the rival."""

    fault: str
    seed: int
    comes_again: bool
    twin: float  # loss at the end without a fault, nats a byte
    remedy: Ended
    rival: Ended

    @property
    def thrown(self) -> int:
        """Steps that the remedy undid."""
        return self.remedy.trained - (END - PREFIX)

    def plain(self) -> dict[str, Any]:
        """As it is printed."""
        return {
            "fault": self.fault,
            "seed": self.seed,
            "comes_again": self.comes_again,
            **{
                name: {
                    "excess": round(ended.loss - self.twin, 4),
                    "stopped_at": ended.stopped_at,
                    "steps_trained": ended.trained,
                    "commands": "; ".join(ended.commands),
                    "causes": "; ".join(ended.causes),
                }
                for name, ended in (("remedy", self.remedy), ("rival", self.rival))
            },
        }


def main() -> int:
    """Run every pair and print."""
    parser = command_line("remedies", __doc__, "three faults, one seed")
    parser.add_argument("--seeds", type=int, default=5, help="paired seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    again, once = QUICK if options.quick else (COMES_AGAIN, ONCE)
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    pairs = list(measure(seeds, again, once))
    found, plain = bars(pairs), [pair.plain() for pair in pairs]
    report = {"steps": END, "machine": machine(), "pairs": plain, "bars": found}
    show(report, options)
    for bar in found:
        say(f"{'met   ' if bar['met'] else 'missed'}  {bar['bar']}: {bar['found']}")
    return 0 if all(bar["met"] for bar in found) else 1


def measure(seeds: Sequence[int], again: Sequence[str], once: Sequence[str]) -> Iterator[Pair]:
    """Every fault under every seed."""
    corpus = read_corpus(None)
    for seed in seeds:
        run = _runner(corpus, seed)
        for text in (*again, *once):
            pair = run(text, text in again)
            say(json.dumps(pair.plain()))
            yield pair


def _runner(corpus: Corpus, seed: int) -> Callable[[str, bool], Pair]:
    """What runs a fault of `seed` in both loops."""
    job = job_of(corpus, seed)
    prefix = prefix_of(job)
    twin = Loop(job, prefix, None, False).run().loss

    def run(text: str, comes_again: bool) -> Pair:
        fault = parse_fault(text)
        remedy = Loop(job, prefix, fault, comes_again).run()
        rival = RivalLoop(job, prefix, fault, comes_again).run()
        return Pair(text, seed, comes_again, twin, remedy, rival)

    return run


def bars(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Each bar with what was found."""
    once = [pair for pair in pairs if not pair.comes_again and pair.fault != HARDER]
    sure = [pair.thrown for pair in once if pair.fault.split("@")[0] in SURE]
    worse = [  # of one seed chance tells: who skips reads other batches
        fmean(pair.remedy.loss - pair.rival.loss for pair in once if pair.fault == fault)
        for fault in {pair.fault for pair in once}
    ]
    orders = [len(pair.remedy.commands) for pair in pairs if pair.fault == HARDER]
    return [
        _bar(f"at most {THROWN} steps undone where the cause is sure", sure, THROWN),
        _bar(
            f"a fault that comes once ends no worse than the rival by {WORSE} nats in the mean",
            worse,
            WORSE,
        ),
        _bar("no order where the data became harder for good", orders, 0),
    ]


def _bar(what: str, found: Sequence[float], most: float) -> dict[str, Any]:
    worst = max(found, default=most)
    return {"bar": what, "found": f"{worst:.4g} at most", "met": worst <= most}


if __name__ == "__main__":
    sys.exit(main())
