"""A training configuration on disk as the rules want it: torchtitan, nanochat, OLMo-core, HF.

Only what the file says is judged: what a framework takes where the file is silent is not known.
Raises `CommandFailed`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, Final

from spikeguard.doctor.setup import LANGUAGE, Family, Group, Setup, family_of
from spikeguard_cli.command import CommandFailed

Config = Mapping[str, Any]
_LOW: Final = ("bfloat16", "float16", "bf16", "fp16")
_HF_ADAM: Final = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_bnb_8bit")


def setup_in(path: Path) -> Setup:
    """What the file says of a job."""
    try:
        config = _READERS.get(path.suffix, json.loads)(path.read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{path} is no TOML, YAML or JSON that can be read: {error!s:.200}"
        ) from None
    for known, read in _FORMATS:
        if isinstance(config, dict) and known(config):
            return read(config)
    raise CommandFailed(
        f"{path} is no configuration of torchtitan (TOML with [optimizer] and [training]), "
        "nanochat (meta_*.json), OLMo-core (config.json) or Hugging Face (TrainingArguments), as "
        "JSON or YAML"
    )


def _yaml(text: str) -> Any:
    """Read where PyYAML is installed, which OLMo-core and Hugging Face bring. Raises `ValueError`
    for what is no YAML."""
    try:
        import yaml
    except ImportError:
        raise CommandFailed("YAML takes PyYAML: pip install pyyaml, or give it as JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _of_torchtitan(config: Config) -> Setup:
    optimizer, training = config["optimizer"], config["training"]
    kind = str(optimizer.get("name", ""))
    group = _group(kind, optimizer, beta2=_number(optimizer.get("beta2")))
    size, length = _number(training.get("global_batch_size")), _number(training.get("seq_len"))
    return Setup(
        (group,),
        tokens=LANGUAGE,
        tokens_per_step=int(size * length) if size and length and size > 0 else None,
        clipped=_above_zero(training["max_norm"]) if "max_norm" in training else None,
        warmup=_whole(config.get("lr_scheduler", {}).get("warmup_steps")),
        kept_low=_low("training.dtype", training.get("dtype")),
    )


def _of_nanochat(config: Config) -> Setup:
    given = config.get("user_config", config)
    decay = _number(given.get("weight_decay"))
    muon = Group("Muon", Family.MUON, _number(given["matrix_lr"]), decay)
    return Setup((muon,), tokens=LANGUAGE, warmup=_whole(given.get("warmup_steps")))


def _of_olmo_core(config: Config) -> Setup:
    module = config["train_module"]
    optim = module["optim"]
    kind = str(optim.get("_CLASS_", "")).rpartition(".")[2].removesuffix("Config")
    betas = optim.get("betas") or (None, None)
    return Setup(
        (_group(kind, optim, beta2=_number(betas[1])),),
        tokens=LANGUAGE,
        tokens_per_step=_whole(config.get("data_loader", {}).get("global_batch_size")),
        clipped=_above_zero(module["max_grad_norm"]) if "max_grad_norm" in module else None,
        warmup=_whole((module.get("scheduler") or {}).get("warmup_steps")),
        kept_low=_low("model.dtype", (config.get("model") or {}).get("dtype")),
    )


def _of_hugging_face(config: Config) -> Setup:
    """Of what model is not said there, so the rules of language models are left out."""
    kind = "AdamW" if config.get("optim") in _HF_ADAM else str(config.get("optim", ""))
    given = {"lr": config["learning_rate"], "weight_decay": config.get("weight_decay")}
    steps, ratio = _number(config.get("warmup_steps")), _number(config.get("warmup_ratio")) or 0.0
    return Setup(
        (_group(kind, given, beta2=_number(config.get("adam_beta2"))),),
        clipped=_above_zero(config["max_grad_norm"]) if "max_grad_norm" in config else None,
        warmup=None if steps is None else int(steps > 0.0 or ratio > 0.0),
    )


def _group(kind: str, given: Config, beta2: float | None) -> Group:
    decay = _number(given.get("weight_decay"))
    family = family_of(kind, given)
    return Group(kind or "the optimizer", family, _number(given.get("lr")), decay, beta2=beta2)


def _low(where: str, dtype: Any) -> str:
    """What says that the weights themselves are kept in low precision; empty if nothing does."""
    return f"{where} is {dtype}" if str(dtype).removeprefix("torch.") in _LOW else ""


def _number(value: Any) -> float | None:
    if isinstance(value, str):  # YAML takes 2e-5, without a point, for text
        with suppress(ValueError):
            return float(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _above_zero(value: Any) -> bool:
    """Whether a limit is set."""
    return value is not None and (_number(value) or 0.0) > 0.0


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
_FORMATS: Final[tuple[tuple[Callable[[Config], bool], Callable[[Config], Setup]], ...]] = (
    (lambda c: "optimizer" in c and isinstance(c.get("training"), dict), _of_torchtitan),
    (lambda c: "matrix_lr" in c.get("user_config", c), _of_nanochat),
    (lambda c: "optim" in (c.get("train_module") or {}), _of_olmo_core),
    (lambda c: "learning_rate" in c and "output_dir" in c, _of_hugging_face),
)
