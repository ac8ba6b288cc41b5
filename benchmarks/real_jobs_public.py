"""Training scripts of public repositories, run from checkouts with the lines that a user adds.

`python -m benchmarks.real_jobs_public nanogpt CHECKOUT`. The script is read, changed in memory as
`Change`s say, and run in the plan's folder, where its data lie; the checkout is not written to.
Invariants: what stands here of their scripts are the lines by which a place is found. Lines that
prepare the experiment, and not the guard, are not counted.
"""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import spikeguard
from benchmarks.real_jobs_loops import LR, WARMUP, started
from benchmarks.real_jobs_text import CONTEXT, ROWS, SEED, Plan, text
from spikeguard.data.by_position import ByPosition
from spikeguard_trainer.schedule import lr_share


@dataclass(frozen=True, slots=True)
class Change:
    """Lines that go into the script where one line starts with `place`."""

    place: str
    lines: tuple[str, ...]
    replaces: bool = False  # that line; else they go before it
    last: bool = False  # the last such line of the script


NANOGPT = (
    Change(
        "X, Y = get_batch('train') # fetch the very first batch",
        (
            "import spikeguard",
            "checkpoints = spikeguard.CheckpointDirectory(f'{out_dir}/guard', every=save_every)",
            "guard = spikeguard.attach(model, optimizer, run='nanogpt', state=[scaler], "
            "micro_batches=gradient_accumulation_steps, checkpoints=checkpoints)",
            "iter_num = guard.resume()",
            "batches = iter(guard.batches(spikeguard.by_position("
            "lambda _: get_batch('train'), seed=1337 + seed_offset)))",
            "X, Y = next(batches)",
        ),
        replaces=True,
    ),
    Change("loss = loss / gradient_accumulation_steps", ("guard.tokens(X); guard.loss(loss)",)),
    Change("X, Y = get_batch('train')", ("X, Y = next(batches)",), replaces=True, last=True),
    Change("torch.nn.utils.clip_grad_norm_(", ("guard.clip_grad_norm_(grad_clip)",), replaces=True),
    Change("# timing and logging", ("guard.step()",)),
    Change("iter_num += 1", ("iter_num = guard.steps",), replaces=True),
    Change("if ddp:", ("guard.finish()",), last=True),
)


def lines_added(changes: Sequence[Change]) -> int:
    return sum(len(change.lines) for change in changes)


def changed(script: str, changes: Sequence[Change]) -> str:
    """The script with the lines in it; raises ValueError where a place is not there."""
    lines = script.splitlines()
    for change in changes:
        found = [n for n, line in enumerate(lines) if line.strip().startswith(change.place)]
        if not found:
            raise ValueError(f"the script has no line that starts with {change.place!r}")
        at = found[-1] if change.last else found[0]
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at : at + change.replaces] = [indent + line for line in change.lines]
    return "\n".join(lines) + "\n"


def faulty_by_position(plan: Plan) -> Callable[..., ByPosition[Any]]:
    """`by_position`, of data with the plan's noise in it and without what it omits."""

    def by_position(fn: Callable[[int], Any], *, seed: int | None = None) -> ByPosition[Any]:
        sound = ByPosition(fn, seed)
        made: ByPosition[Any] = ByPosition(lambda index: item(index, made.micro_batches))

        def item(index: int, micro: int) -> Any:
            position, part = divmod(index, micro)
            found = sound._made(plan.place(position) * micro + part)
            if plan.bad[0] <= position < plan.bad[1]:
                noise = torch.Generator().manual_seed(position * micro + part)
                found = tuple(torch.randint(256, each.shape, generator=noise) for each in found)
            return found

        return made

    return by_position


def nanogpt(plan: Plan, checkout: Path) -> None:
    """nanoGPT's train.py on one process, two micro-batches a step."""
    home = Path(plan.out)
    _write_bins(home / "data" / "text")
    script = changed((checkout / "train.py").read_text(), NANOGPT)
    spikeguard.by_position = faulty_by_position(plan)
    sys.path.insert(0, str(checkout))
    arguments = {
        "dataset": "text",
        "out_dir": "out",
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "eval_interval": 100_000,
        "eval_iters": 1,
        "log_interval": 100_000,
        "gradient_accumulation_steps": 2,
        "batch_size": ROWS,
        "block_size": CONTEXT,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 32,
        "dropout": 0.1,
        "learning_rate": LR,
        "min_lr": LR / 10,
        "warmup_iters": WARMUP,
        "max_iters": plan.steps - 1,
        "lr_decay_iters": plan.steps,
    }
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in arguments.items())]
    _run(script, home, checkout, {"save_every": plan.checkpoint_every})


def _run(script: str, home: Path, checkout: Path, names: dict[str, Any]) -> None:
    import os

    os.chdir(home)
    if not Path("configurator.py").exists():
        Path("configurator.py").symlink_to((checkout / "configurator.py").resolve())
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__", **names})


def _write_bins(folder: Path) -> None:
    """The text as nanoGPT's data sets are, once a run."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "meta.pkl").exists():
        return
    tokens = text()[: 1 << 22].astype(np.uint16)
    tokens.tofile(folder / "train.bin")
    tokens[: 1 << 16].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))


def nanochat(plan: Plan, checkout: Path) -> None:
    """nanochat's model and its MuonAdamW, in a loop like its base_train's."""
    sys.path.insert(0, str(checkout))
    from importlib import import_module

    gpt = import_module("nanochat.gpt")
    sizes = {"n_layer": 2, "n_head": 2, "n_kv_head": 2, "n_embd": 64}
    config = gpt.GPTConfig(sequence_len=CONTEXT, vocab_size=256, **sizes)
    model = gpt.GPT(config)
    model.init_weights()
    optimizer = model.setup_optimizer()
    nanochat_loop(plan, model, optimizer)


def nanochat_loop(plan: Plan, model: Any, optimizer: Any) -> None:
    """As its own: the next batch is fetched while the step is under way, the rates are made of
    the step, and so is Muon's momentum."""
    accumulation = 2

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(text()) - CONTEXT - 1, (ROWS,))
        rows = torch.stack([torch.from_numpy(text()[s : s + CONTEXT + 1].copy()) for s in starts])
        return rows[:, :-1].long(), rows[:, 1:].long()

    guard = spikeguard.attach(  # +
        model,
        optimizer,
        run="nanochat",
        micro_batches=accumulation,
        checkpoints=spikeguard.CheckpointDirectory(
            Path(plan.out) / "guard", every=plan.checkpoint_every
        ),
    )
    step = guard.resume()  # +
    items = spikeguard.by_position(lambda _: get_batch(), seed=SEED)  # +
    batches = iter(guard.batches(items))  # +
    x, y = next(batches)  # +
    while step < plan.steps:
        for _ in range(accumulation):
            loss = model(x, y)
            guard.tokens(x)  # +
            guard.loss(loss)  # +
            (loss / accumulation).backward()
            x, y = next(batches)  # +
        share = lr_share(step, warmup=WARMUP, total=plan.steps)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share
            if group["kind"] == "muon":
                group["momentum"] = 0.85 + 0.1 * min(1.0, step / 100)
        guard.clip_grad_norm_(None)  # +
        optimizer.step()
        model.zero_grad(set_to_none=True)
        guard.step()  # +
        step = guard.steps  # +
    guard.finish()  # +


SCRIPTS: dict[str, Callable[[Plan, Path], None]] = {"nanogpt": nanogpt, "nanochat": nanochat}


def main(name: str, checkout: str) -> int:
    """Run one script under the plan in the environment."""
    plan = Plan.read()
    Path(plan.out).mkdir(parents=True, exist_ok=True)
    for _ in started(plan):
        if name == "nanochat":
            spikeguard.by_position = faulty_by_position(plan)
        SCRIPTS[name](plan, Path(checkout).resolve())
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(main(sys.argv[1], sys.argv[2]))
