"""Which column of a log is which signal: the names people's tools give them.

Law: pure. A column already called as we call it is taken, before any guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

STEP, LOSS = "step", "loss"

NAMES: Mapping[str, tuple[str, ...]] = {
    STEP: ("step", "iteration", "iter", "global_step", "_step", "Step", "train/global_step"),
    LOSS: (
        *("loss", "train/loss", "train_loss", "lm loss", "Loss/train", "loss/train"),
        *("train_loss_step", "training/loss", "loss_metrics/global_avg_loss"),
        "reduced_train_loss",
    ),
    "grad_norm": (
        *("grad_norm", "train/grad_norm", "grad norm", "grad-norm", "train_grad_norm"),
        "training/grad_norm",
    ),
    "lr": (
        *("lr", "learning_rate", "train/learning_rate", "learning rate", "learning-rate"),
        *("train/lr", "lr-AdamW"),
    ),
    "param_norm": ("param_norm", "params norm", "params-norm"),
}


NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Columns:
    """The column of the file that each signal is read from."""

    chosen: Mapping[str, str]  # our name -> the file's
    passed_over: tuple[str, ...] = ()  # other columns that could have been meant

    def missing(self) -> list[str]:
        """What no log can do without and this one has not."""
        return [name for name in (STEP, LOSS) if name not in self.chosen]

    def signal(self, column: str) -> str:
        """Our name of the file's `column`, its own where we have none."""
        return next((ours for ours, theirs in self.chosen.items() if theirs == column), column)

    def said(self) -> str:
        """The guesses in words; empty where nothing had to be guessed."""
        guessed = [
            f"{ours} from `{theirs}`" for ours, theirs in self.chosen.items() if ours != theirs
        ]
        unused = [f"`{name}` not used" for name in self.passed_over]
        return ", ".join([*guessed, *unused])


def guess_columns(found: Collection[str], asked: Mapping[str, str] = NOTHING) -> Columns:
    """For every signal what was `asked`, else the first of its usual names that is in `found`."""
    usual = {ours: [name for name in names if name in found] for ours, names in NAMES.items()}
    usual |= {ours: [name] for ours, name in asked.items() if name in found}
    return Columns(
        {ours: names[0] for ours, names in usual.items() if names},
        tuple(name for names in usual.values() for name in names[1:]),
    )
