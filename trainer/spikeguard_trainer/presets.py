"""The sizes of job that have a name."""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_trainer.model import Shape


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and how it is trained; every number but the shape can be overridden."""

    shape: Shape
    batch: int  # rows of one optimizer step, over all ranks and micro-batches
    lr: float  # peak
    warmup: int  # steps
    steps: int
    checkpoint_every: int  # steps
    validation_batches: int


PRESETS: dict[str, Preset] = {
    # For tests: about 0.04 M parameters.
    "tiny": Preset(Shape(32, 2, 2, 88, 32), 12, 3e-3, 20, 400, 25, 32),
    # For a demonstration that a person watches: about 0.3 M parameters.
    "demo": Preset(Shape(96, 3, 4, 256, 96), 16, 2e-3, 40, 600, 50, 16),
    # 25 M parameters: the yardstick for overhead.
    "reference": Preset(Shape(512, 8, 8, 1344, 512), 8, 6e-4, 200, 10_000, 500, 32),
}
