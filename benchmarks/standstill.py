"""How much pure bf16 still learns, by the share of parameters that a step leaves unchanged.

The reference trainer's model is trained in bf16 throughout; from there it is trained on at several
fixed learning rates, each in bf16 and, beside it, from the same weights and moments in fp32. Told:
the share of the update's sample that a step left as it was, and the fall of the validation loss in
bf16 as a part of that in fp32. `domain/standstill.py` has its limit from here.
    python -m benchmarks.standstill [--seeds 1 2] [--quick] [--json]
"""

from __future__ import annotations

import copy
import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard.measure.update_norms import samples_of, unchanged
from spikeguard_trainer.data import BatchLoader, read_corpus
from spikeguard_trainer.model import Shape, Transformer
from spikeguard_trainer.schedule import make_optimizer

SHAPE, ROWS = Shape(64, 2, 2, 176, 48), 12
LEARNT, TRAINED_ON, EVERY = 500, 120, 10  # steps; the share is measured in one of `EVERY`
PEAK, BETA2 = 3e-3, 0.95
RATES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
QUICK = (1e-3, 1e-4, 1e-5)
VALIDATED = 24  # batches


class Job:
    """One seed's data and model."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.seed, self.corpus = seed, read_corpus()
        self.model = Transformer(SHAPE).bfloat16()
        self.optimizer = make_optimizer(self.model, lr=PEAK, beta2=BETA2)
        train(self, self.model, self.optimizer, 0, LEARNT, PEAK)
        self.loss = self.validate(self.model)

    def loader(self, at: int) -> BatchLoader:
        found = BatchLoader(self.corpus.training, rows=ROWS, context=SHAPE.context, seed=self.seed)
        found.skip_to(at)
        return found

    def validate(self, model: Transformer) -> float:
        """Mean loss on held-out text, computed in fp32, nats a byte."""
        whole = copy.deepcopy(model).float()
        batches = iter(
            BatchLoader(self.corpus.validation, rows=ROWS, context=SHAPE.context, seed=0)
        )
        with torch.no_grad():
            found = [next(batches) for _ in range(VALIDATED)]
            return sum(float(whole(b.tokens, b.targets)) for b in found) / VALIDATED

    def trained_on(self, rate: float, dtype: torch.dtype) -> tuple[float, float]:
        """Mean share unchanged, and the fall of the validation loss, at a fixed `rate`."""
        model = copy.deepcopy(self.model).to(dtype)
        optimizer = make_optimizer(model, lr=rate, beta2=BETA2)
        optimizer.load_state_dict(self.optimizer.state_dict())
        shares = train(self, model, optimizer, LEARNT, TRAINED_ON, rate)
        return sum(shares) / len(shares), self.loss - self.validate(model)


def train(
    job: Job, model: Transformer, optimizer: torch.optim.Optimizer, at: int, steps: int, rate: float
) -> list[float]:
    """Train `steps` from position `at` on; the shares of parameters that single steps left."""
    loader, shares = job.loader(at), list[float]()
    (sample,) = samples_of([model], [optimizer], 0.02)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for step in range(1, steps + 1):
        batch = next(loader)
        model(batch.tokens, batch.targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step % EVERY == 0:
            sample.before_step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % EVERY == 0:
            sample.after_step([rate] * len(optimizer.param_groups))
            share = unchanged([sample])
            shares += [float(share)] if share is not None else []
    return shares


def measure(seeds: Sequence[int], rates: Sequence[float]) -> dict[str, Any]:
    """By rate: share unchanged in bf16 and in fp32, and the part of fp32's learning."""
    jobs = [Job(seed) for seed in seeds]
    rows = []
    for rate in rates:
        low = [job.trained_on(rate, torch.bfloat16) for job in jobs]
        full = [job.trained_on(rate, torch.float32) for job in jobs]
        parts = [fall / whole for (_, fall), (_, whole) in zip(low, full, strict=True)]
        kept = {"bf16": [share for share, _ in low], "fp32": [share for share, _ in full]}
        spreads = {name: Spread.of(shares) for name, shares in kept.items()}
        rows.append({"rate": rate, **spreads, "part": Spread.of(parts)})
    parameters = sum(p.numel() for p in jobs[0].model.parameters())
    return {"parameters": parameters, "rows": rows, "machine": machine()}


def table(report: dict[str, Any]) -> str:
    """For a reader."""
    lines = [f"{report['parameters']:,} parameters", "rate   unchanged bf16 | fp32 | part learned"]
    lines += [f"{r['rate']:.0e}  {r['bf16']} | {r['fp32']} | {r['part']}" for r in report["rows"]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmarks.standstill", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--quick", action="store_true", help="one seed, three rates")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = (options.seeds[:1], QUICK) if options.quick else (options.seeds, RATES)
    report = measure(*chosen)
    print(json.dumps(report, indent=1, default=str) if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
