"""The rows: which job, how it is started, and how many lines spikeguard adds to it."""

from __future__ import annotations

import inspect
import re
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    real_jobs_gpu as gpu,
    real_jobs_kinds as kinds,
    real_jobs_loops as loops,
    real_jobs_public as public,
    real_jobs_titan as titan,
)
from benchmarks.real_jobs_runs import Command, own_loop, public_script, torchtitan

TORCHTITAN = ("torchtitan==0.3.0", "triton")  # imported by it, also where there is no GPU
TRL = ("trl==1.16.0", "peft==0.21.2")
PACKAGES = ("torch", "transformers", "accelerate", "lightning")
ADDED = re.compile(r"# \+$", re.MULTILINE)


class Unavailable(Exception):
    """What a row needs is not here."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the code is that this project does not hold."""

    cache: Path
    nanogpt: Path | None
    nanochat: Path | None


@dataclass(frozen=True, slots=True)
class Row:
    """One job."""

    title: str
    lines: int  # that spikeguard adds
    command: Callable[[Places], Command]  # raises `Unavailable`


def versions(places: Places) -> dict[str, str]:
    """Of what the rows run: packages, and commits of the checkouts that are named."""
    pinned: list[list[str]] = [package.split("==") for package in (TORCHTITAN[0], *TRL)]
    found = {name: version(name) for name in PACKAGES} | dict(pinned)
    for name, folder in (("nanoGPT", places.nanogpt), ("nanochat", places.nanochat)):
        if folder is not None:
            command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
            asked = subprocess.run(command, capture_output=True, text=True)
            found[name] = asked.stdout.strip() or "unknown"
    return found


def marked(*functions: Callable[..., object]) -> int:
    """Lines that are marked as added."""
    return sum(len(ADDED.findall(inspect.getsource(function))) for function in functions)


def _own(title: str, name: str, function: Callable[..., object], ranks: int = 1) -> Row:
    return Row(title, marked(function), lambda _: own_loop(name, ranks))


def _gpu(title: str, name: str, function: Callable[..., object], **more: Any) -> Row:
    def command(_: Places) -> Command:
        if not torch.cuda.is_available():
            raise Unavailable("there is no GPU")
        return own_loop(name, environment=gpu.ENVIRONMENT, **more)

    return Row(title, marked(function), command)


def _nanogpt(places: Places) -> Command:
    return public_script("nanogpt", _checkout(places.nanogpt, "nanogpt", "train.py"))


def _nanochat(places: Places) -> Command:
    return public_script("nanochat", _checkout(places.nanochat, "nanochat", "nanochat/gpt.py"))


def _titan(title: str, layout: str) -> Row:
    def command(places: Places) -> Command:
        python = _environment(places.cache, "torchtitan", TORCHTITAN)
        return torchtitan(python, layout, titan.ranks_of(layout))

    return Row(title, marked(titan.train), command)


def _trl(places: Places) -> Command:
    return own_loop("trl_lora", python=_environment(places.cache, "trl", TRL))


def _environment(cache: Path, name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment that has ours and `packages`, made once with pip."""
    home = cache / name
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, clear=True, with_pip=True)
        _see_ours(home)
        made = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *packages], capture_output=True
        )
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().splitlines()
            raise Unavailable(f"pip: {said[-1] if said else made.returncode}")
        (home / "ready").touch()
    _see_ours(home)  # it may have been made by a checkout that is gone
    return python


def _see_ours(home: Path) -> None:
    """Have its interpreter find what is installed for this one, too."""
    ours = Path(torch.__file__).parent.parent
    (next(home.glob("lib/python*/site-packages")) / "ours.pth").write_text(f"{ours}\n")


def _checkout(folder: Path | None, name: str, file: str) -> Path:
    """The folder that was named; raises `Unavailable`."""
    if folder is None:
        raise Unavailable(f"clone it and name its folder with --{name}")
    if not (folder / file).is_file():
        raise Unavailable(f"{folder} holds no {file}: is it a checkout?")
    return folder.resolve()


ROWS: dict[str, Row] = {
    "hugging_face": _own("HF Trainer", "hugging_face", loops.hugging_face_trainer),
    "accelerate": _own("Accelerate", "accelerate", loops.accelerate_loop),
    "lightning": _own("Lightning", "lightning", loops.lightning_trainer),
    "nanogpt": Row("nanoGPT", public.lines_added(public.NANOGPT), _nanogpt),
    "nanochat": Row("nanochat", marked(public.nanochat_loop), _nanochat),
    "container": _titan("torchtitan, container", "container"),
    "titan_fsdp2": _titan("torchtitan, FSDP2", "fsdp2"),
    "titan_hsdp": _titan("torchtitan, HSDP", "hsdp"),
    "titan_tp": _titan("torchtitan, TP", "tp"),
    "titan_pp": _titan("torchtitan, PP", "pp"),
    "titan_pp_fsdp2": _titan("torchtitan, PP + FSDP2", "pp_fsdp2"),
    "adamw_muon": _own("AdamW + Muon", "adamw_muon", loops.plain_loop),
    "fsdp2": _own("FSDP2, AdamW", "fsdp2", loops.plain_loop, 2),
    "fsdp2_muon": _own("FSDP2, AdamW + Muon", "fsdp2_muon", loops.plain_loop, 2),
    "hsdp": _own("HSDP, AdamW", "hsdp", loops.plain_loop, 4),
    "hsdp_muon": _own("HSDP, AdamW + Muon", "hsdp_muon", loops.plain_loop, 4),
    "pp": _own("PP, AdamW", "pp", loops.pipeline_loop, 2),
    "pp_muon": _own("PP, AdamW + Muon", "pp_muon", loops.pipeline_loop, 2),
    "trl_lora": Row("TRL SFTTrainer + LoRA", marked(kinds.trl_lora_trainer), _trl),
    "sam": _own("SAM", "sam", kinds.sam_loop),
    "local_sgd": _own("Local SGD in DDP", "local_sgd", kinds.local_sgd_loop, 2),
    "passes": _own("Own generator, three passes", "passes", kinds.passes_loop),
    "gan": _own("Model and critic, stepping together", "gan", kinds.gan_loop),
    "batch_norm": _own("BatchNorm", "batch_norm", kinds.plain),
    "adopted": _own("Adopted in the middle", "adopted", kinds.plain),
}
GPU_ROWS: dict[str, Row] = {
    **{
        f"gpu_{name}": _gpu(
            kind.title,
            f"gpu_{name}",
            gpu.loop,
            ranks=2 if kind.replicated else 1,
            grouped=kind.sharded,
            alike=kind.replicated,
        )
        for name, kind in gpu.KINDS.items()
    },
    "gpu_hugging_face": _gpu("HF Trainer, fp16", "gpu_hugging_face", gpu.hugging_face),
    "gpu_lightning": _gpu("Lightning, 16-mixed", "gpu_lightning", gpu.lightning),
    "gpu_fabric": _gpu("Fabric, 16-mixed", "gpu_fabric", gpu.fabric),
    "gpu_accelerate": _gpu("Accelerate, fp16", "gpu_accelerate", gpu.accelerate),
}
