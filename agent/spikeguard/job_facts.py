"""What a reader of the record wants to know of a job, as text.

Told once, when the attempt begins; nothing here is measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from spikeguard.commands.orders import limits_told
from spikeguard.faults import log
from spikeguard.optim.optimizers import kinds_of
from spikeguard.optim.update_skipper import UpdateSkipper
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import parameters
from spikeguard.settings import Settings
from spikeguard_protocol.identity import MAX_TAGS, TAG_PATTERN, TAGS_FACT

TAGS_VARIABLE = "SPIKEGUARD_TAGS"


def facts_of(
    job: Job, update_skipper: UpdateSkipper, settings: Settings, micro: int, numbers: int
) -> dict[str, str]:
    """`micro`: batches a step; `numbers`: parameters of the whole model."""
    group = job.optimizers[0].param_groups[0]
    words = ("lr", "betas", "eps", "weight_decay")
    named: dict[str, str] = {word: str(group[word]) for word in words if word in group}
    held = parameters(job.parts)
    return {
        **named,
        "optimizer": kinds_of(job.optimizers),
        "parameters": str(numbers),
        "dtype": str(held[0].dtype).removeprefix("torch."),
        "device": held[0].device.type,
        "micro_batches": str(micro),
        "update_skipper": "drop" if update_skipper.armed else "report",
        "torch": torch.__version__,
        "host": os.uname().nodename,
        **limits_told(settings),
        **tags_told(os.environ),
    }


def tags_told(environment: Mapping[str, str]) -> dict[str, str]:
    """Tags that the job gives its run; what can be none is left out, and said once."""
    given = [tag.strip() for tag in environment.get(TAGS_VARIABLE, "").split(",") if tag.strip()]
    good = [tag for tag in dict.fromkeys(given) if TAG_PATTERN.fullmatch(tag)][:MAX_TAGS]
    if len(good) < len(given):
        log.warning(
            "%s: only %s is told as tags: at most %d, of 1 to 40 letters, digits and ._:=+/-",
            TAGS_VARIABLE, ", ".join(good) or "nothing", MAX_TAGS,
        )  # fmt: skip
    return {TAGS_FACT: ",".join(good)} if good else {}


def agent_version() -> str:
    try:
        return version("spikeguard")
    except PackageNotFoundError:
        return "unknown"
