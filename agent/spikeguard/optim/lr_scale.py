"""A lowered learning rate: by how much, for which steps; as journal and checkpoints hold it."""

from __future__ import annotations

from dataclasses import dataclass

RAMP_SHARE = 0.1  # of the steps, at their end


@dataclass(frozen=True, slots=True)
class LrScale:
    """`factor` for `steps` steps after step `start`, climbing back to 1 over their last tenth.

    Where there is a `cap`, rates are lowered no further than brings the first group's down to it.
    """

    factor: float
    start: int
    steps: int
    cap: float | None = None

    def at(self, step: int) -> float:
        """The least that multiplies the learning rate of the `step`-th optimizer step."""
        done = step - self.start - 1
        if not 0 <= done < self.steps:
            return 1.0
        ramp = max(1, int(self.steps * RAMP_SHARE)) if self.steps > 1 else 0
        climbed = max(0, done - (self.steps - ramp) + 1)
        return self.factor + (1.0 - self.factor) * climbed / (ramp + 1)
