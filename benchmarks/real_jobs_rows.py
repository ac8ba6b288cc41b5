"""The rows: which job, how it is started, and how many lines spikeguard adds to it."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import real_jobs_loops as loops
from benchmarks.real_jobs_runs import Command, own_loop

ADDED = re.compile(r"# \+$", re.MULTILINE)


class Unavailable(Exception):
    """What a row needs is not here."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the code is that this project does not hold."""

    cache: Path
    nanogpt: Path | None
    nanochat: Path | None

    @classmethod
    def of(cls, cache: Path, nanogpt: Path | None, nanochat: Path | None) -> Places:
        """As given, or as the environment says."""

        def named(given: Path | None, variable: str) -> Path | None:
            stated = os.environ.get(variable)
            return given or (Path(stated) if stated else None)

        return cls(cache, named(nanogpt, "NANOGPT"), named(nanochat, "NANOCHAT"))


@dataclass(frozen=True, slots=True)
class Row:
    """One job."""

    title: str
    lines: int  # that spikeguard adds
    command: Callable[[Places], Command]  # raises `Unavailable`


def marked(*functions: Callable[..., object]) -> int:
    """Lines that are marked as added."""
    return sum(len(ADDED.findall(inspect.getsource(function))) for function in functions)


def _own(title: str, name: str, function: Callable[..., object], ranks: int = 1) -> Row:
    return Row(title, marked(function), lambda _: own_loop(name, ranks))


ROWS: dict[str, Row] = {
    "hugging_face": _own("HF Trainer", "hugging_face", loops.hugging_face_trainer),
    "accelerate": _own("Accelerate", "accelerate", loops.accelerate_loop),
    "lightning": _own("Lightning", "lightning", loops.lightning_trainer),
    "adamw_muon": _own("AdamW + Muon", "adamw_muon", loops.plain_loop),
    "fsdp2": _own("FSDP2, AdamW", "fsdp2", loops.plain_loop, 2),
    "fsdp2_muon": _own("FSDP2, AdamW + Muon", "fsdp2_muon", loops.plain_loop, 2),
    "hsdp": _own("HSDP, AdamW", "hsdp", loops.plain_loop, 4),
    "hsdp_muon": _own("HSDP, AdamW + Muon", "hsdp_muon", loops.plain_loop, 4),
}
