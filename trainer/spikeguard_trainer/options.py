"""The command line of the reference job."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spikeguard_trainer.faults import Fault, FaultError, describe_faults, parse_fault
from spikeguard_trainer.model import Shape

EXIT_FAILED = 1
EXIT_STOPPED = 3
EXIT_INTERRUPTED = 130
EPILOG = f"""\
faults (--fault NAME@STEP[:LENGTH[:STRENGTH]], repeatable):
{describe_faults()}
  bad_batch* and gradient_ascent hang on the batches: skipping those avoids them, going back
  without a skip meets them again. The others happen once per run. The batch of step S has
  position S-1 until something is skipped; a fault of the weights shows in the loss at STEP+1.
  NAME@rollback+N comes N steps after the first rollback, for those that do not hang on batches.

The server is found through SPIKEGUARD_SERVER, SPIKEGUARD_TOKEN and SPIKEGUARD_PROJECT; without
them the run trains alone. Started again with the same --out it goes on from its checkpoint.
Several ranks: torchrun --nproc-per-node=2 -m -- spikeguard_trainer --out DIR ... (without the
"--" torchrun takes --log for one of its own options).

exit status: 0 trained to the end; 1 could not start (data, checkpoints); 2 a wrong option;
3 stopped by a command; 75 a command was applied on some ranks only: start again; 130 interrupted.
"""


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


@dataclass(frozen=True, slots=True)
class Options:
    """One run, as asked for."""

    name: str
    preset: Preset
    steps: int
    seed: int
    out: Path
    data: Path | None
    batch: int
    micro_batches: int
    lr: float
    warmup: int
    beta2: float
    clip: float
    clip_rule: str | None
    swap_cost: str | None
    bf16: bool | None  # None: on CUDA only
    cpu: bool
    checkpoint_every: int
    keep: int
    faults: tuple[Fault, ...]
    log: Path | None
    summary: Path | None
    step_time: float  # seconds; a floor
    hold: Path | None  # trains on past `steps` while this file is there
    quiet: bool

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.preset.shape.context

    @property
    def held(self) -> bool:
        """Whether somebody still wants the run to go on past its end."""
        return self.hold is not None and self.hold.exists()


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a wrong one ends the program with status 2."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if given["hold"] and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error("--hold is for one rank: ranks that see the file go at two times part ways")
    preset = PRESETS[given["preset"]]
    for name in ("steps", "batch", "lr", "warmup", "checkpoint_every"):
        if given[name] is None:
            given[name] = getattr(preset, name)
    name = given.pop("run") or given["out"].resolve().name
    faults = tuple(given.pop("fault"))
    return Options(**{**given, "preset": preset, "name": name, "faults": faults})


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m spikeguard_trainer",
        description="Train a small transformer on real text, guarded, with faults on request.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    _add_run_options(parser)
    _add_training_options(parser)
    _add_output_options(parser)
    parser.add_argument(
        "--fault", type=_fault, action="append", default=[], help="what goes wrong; see below"
    )
    return parser


def _add_run_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of this run: checkpoints and journal")
    add("--run", help="name of the run (default: the name of the --out folder)")
    add("--preset", choices=sorted(PRESETS), default="demo", help="size of the job (default: demo)")
    add("--data", type=Path, help="a file or folder of text (default: the standard library)")
    add("--seed", type=_whole(0, 2**31), default=0, help="of the weights and of the data order")


def _add_training_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--steps", type=_whole(1, 10**9), help="length of the run and of its schedule")
    add("--batch", type=_whole(1, 2**20), help="rows a step, over all ranks and micro-batches")
    add("--micro-batches", type=_whole(1, 2**16), default=1, help="gradient accumulation")
    add("--lr", type=_number(0, 100), help="peak learning rate")
    add("--warmup", type=_whole(1, 10**9), help="steps of warm-up")
    add("--beta2", type=_number(0, 0.99999), default=0.95, help="of AdamW (default: 0.95)")
    add("--clip", type=_number(0, 1e9), default=1.0, help="global gradient norm (default: 1.0)")
    add(
        "--clip-rule", choices=("zclip",),
        help="clip by this rule, and to --clip at most (default: --clip alone)",
    )  # fmt: skip
    add(
        "--swap-cost", metavar="TEXT",
        help="register the mitigation swap-data, which reads data without faults, at this cost",
    )  # fmt: skip
    add("--bf16", action="store_true", default=None, help="bf16 autocast; on CUDA the default")
    add("--fp32", action="store_false", dest="bf16", help="no autocast; on the CPU the default")
    add("--cpu", action="store_true", help="leave a GPU alone")


def _add_output_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint-every", type=_whole(1, 10**9), help="steps between checkpoints")
    add("--keep", type=_whole(1, 10**6), default=10, help="checkpoints kept (default: 10)")
    add("--log", type=Path, help="CSV with a row for every trained step")
    add("--summary", type=Path, help="JSON written at the end")
    add("--step-time", type=_number(0, 3600), default=0.0, help="pacing: least seconds a step")
    add(
        "--hold", type=Path, metavar="FILE",
        help="train on past --steps, slowly and at the last rate, while FILE is there",
    )  # fmt: skip
    add("--quiet", action="store_true", help="no progress")


def _whole(least: int, most: int) -> Callable[[str], float]:
    return partial(_within, int, "a whole number", least, most)


def _number(least: float, most: float) -> Callable[[str], float]:
    return partial(_within, float, "a number", least, most)


def _within(kind: type[float], named: str, least: float, most: float, text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise ArgumentTypeError(f"takes {named}, got {text!r}") from None
    if not least <= value <= most:
        raise ArgumentTypeError(f"takes {least:.10g} to {most:.10g}, got {value:.10g}")
    return value


def _fault(text: str) -> Fault:
    try:
        return parse_fault(text)
    except FaultError as error:
        raise ArgumentTypeError(str(error)) from None
