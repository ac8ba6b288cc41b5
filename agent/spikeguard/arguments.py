"""What `attach()` accepts, checked before anything is opened, hooked or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from typing import Any

import torch

from spikeguard.commands.mitigations import Mitigation
from spikeguard.errors import AttachError
from spikeguard.guard import guard_of
from spikeguard.loop.exchange import Write
from spikeguard.optim.clipping import Rule, rule_of
from spikeguard.optim.optimizers import trained_by
from spikeguard.ranks.model_parts import parameters
from spikeguard.ranks.ranks import Ranks
from spikeguard.settings import Settings, whole
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.uplink.batch_reporter import Decode, NameBatch
from spikeguard_protocol import ProtocolError
from spikeguard_protocol.links import check_links

_KINDS: Mapping[str, tuple[Any, str]] = {  # a class or several, as isinstance takes them
    "run": (str, "Give a name, a str"),
    "project": (str, "Give a name, a str"),
    "server": (str, "Write it like 'http://HOST:PORT', or leave it out to work offline"),
    "token": (str, "Give the text that `spikeguard token create` has printed"),
    "directory": ((str, PathLike), "Give the path of a folder"),
    "checkpoints": (CheckpointDirectory, "Wrap the path in a CheckpointDirectory"),
    "settings": (Settings, "Give Settings(...), or None for the defaults"),
    "links": (Mapping, "Give a dict: names and http(s) addresses"),
    "ranks": (Ranks, "Give Ranks(replicated=..., pipeline=..., ...)"),
    "state": ((list, tuple), "Give a list of objects"),
    "name_batch": (Callable, "Give a function of one item of the loader"),
    "forward": (Callable, "Give a function of (values, step), as a tracker's log"),
    "decode": (Callable, "Give a function of a list of token ids, as tokenizer.decode"),
}

_DEEPSPEED = "DeepSpeedOptimizer"  # from which those derive that hold copies or partitions
_ENGINE = "DeepSpeedEngine"
_PARTITIONED = ("ds_id", "_hp_mapping")  # what ZeRO 3, and ZeRO 1 and 2, put on a parameter


@dataclass(frozen=True, slots=True)
class Arguments:
    """Watch `model` and `optimizer`; returns the guard that the loop calls.

    `model`: one module, or a list of those that make it up. `optimizer`: one that trains all of it,
    or a list, a dict or a container of several, each of which trains its own parameters.
    `run`, `project`, `server`, `token` also come from SPIKEGUARD_RUN, _PROJECT, _SERVER, _TOKEN (or
    _TOKEN_FILE); without a server the guard works offline. `state`: whatever else has a
    `state_dict` and must go back in a rollback (an EMA, a GradScaler). `directory`: journal and
    outbox, shared by all attempts of the run; by default `spikeguard` in the folder of
    the checkpoints.
    `micro_batches`: items of the loader per optimizer step. `tokens_per_step`: over all ranks.
    `forward`: a function of (values, step) for the user's own tracker, called for every step beside
    the loop (rank 0).
    `links`: where the run is shown, name to http(s) address, at most 8.
    `name_batch`: told an item of the loader, returns what lies in it, a str or several; called
    beside the loop for the batches of an incident, so that the record says which documents they
    were.
    `decode`: told a list of token ids, returns text (`tokenizer.decode`); called beside the loop
    for the worst sequence of an incident's batches. Without it no text leaves the job.
    `ranks`: what the ranks hold, `Ranks(...)`, where neither DDP nor DTensors say it.
    `clip`: a rule that clips every step, "zclip" or an object of
    `spikeguard.optim.clipping`; a loop that calls `guard.clip_grad_norm_(max_norm)` gets at most
    that norm, one that clips by no call is clipped before its update.
    `mitigations`: what an order may switch on for some steps: `Mitigation(name, apply, undo, cost)`
    each.
    """

    model: torch.nn.Module | Sequence[torch.nn.Module]
    optimizer: Any
    _: KW_ONLY
    run: str | None = None
    project: str | None = None
    scheduler: Any = None
    state: Sequence[Any] = ()
    checkpoints: CheckpointDirectory | None = None
    server: str | None = None
    token: str | None = None
    directory: str | PathLike[str] | None = None
    tokens_per_step: int | None = None
    micro_batches: int = 1
    settings: Settings | None = None
    forward: Write | None = None
    links: Mapping[str, str] | None = None
    name_batch: NameBatch | None = None
    decode: Decode | None = None
    ranks: Ranks | None = None
    clip: str | Rule | None = None
    mitigations: Sequence[Mitigation] = ()

    @property
    def modules(self) -> tuple[Any, ...]:
        """The model, or the parts that it is made up of."""
        return tuple(self.model) if isinstance(self.model, list | tuple) else (self.model,)


def refuse_deepspeed(given: Arguments) -> None:
    """Raise `AttachError` where DeepSpeed trains copies or partitions that it keeps to itself."""
    several = isinstance(given.optimizer, list | tuple)
    optimizers = list(given.optimizer) if several else [given.optimizer]
    engines = [each for each in (*given.modules, *optimizers) if _is_a_kind(each, _ENGINE)]
    optimizers += [getattr(engine, "optimizer", None) for engine in engines]
    modules = [part for part in given.modules if isinstance(part, torch.nn.Module)]
    if any(_is_a_kind(each, _DEEPSPEED) for each in optimizers) or any(
        hasattr(p, name) for part in modules for p in part.parameters() for name in _PARTITIONED
    ):
        raise AttachError(
            "optimizer",
            "DeepSpeed's ZeRO 1 to 3, and its own mixed precision, train copies of the parameters "
            "that it keeps to itself, where no norm can be taken, no update skipped and nothing "
            "put back",
            "It is not supported: train with ZeRO stage 0 without DeepSpeed's bf16 or fp16 (use "
            "torch.autocast), or with FSDP2 (fully_shard)",
        )


def _is_a_kind(value: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(value).__mro__)


def check_arguments(given: Arguments, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise `AttachError` for the first of them that cannot work; `optimizers`: those given."""
    _check_watched(given.modules, optimizers)
    for argument, (kind, remedy) in _KINDS.items():
        value = getattr(given, argument)
        if value is not None and not isinstance(value, kind):
            raise AttachError(argument, _is_a(value), remedy)
    if given.ranks is not None:
        given.ranks.check()
    _check_links(given.links or {})
    try:
        rule_of(given.clip)
    except (TypeError, ValueError) as error:
        problem, _, remedy = str(error).partition(". ")
        raise AttachError("clip", problem, remedy) from None
    if not all(isinstance(each, Mitigation) for each in given.mitigations):
        remedy = "Give a list of Mitigation(name, apply, undo, cost)"
        raise AttachError("mitigations", f"it is {given.mitigations!r:.80}", remedy)
    if given.scheduler is not None:
        _check_state("scheduler", given.scheduler)
    for item in given.state:
        _check_state("state", item)
    if given.tokens_per_step is not None:
        _check_count("tokens_per_step", given.tokens_per_step, ", or None")
    _check_count("micro_batches", given.micro_batches)


def _check_links(links: Mapping[Any, Any]) -> None:
    """Raise `AttachError` for a link that no page could show."""
    for name, address in links.items():
        if not isinstance(name, str) or not isinstance(address, str):
            problem = f"it has {name!r}: {address!r:.80}"
            raise AttachError("links", problem, "Give names and addresses")
    try:
        check_links(links)
    except ProtocolError as error:
        remedy = "Give at most 8 names with http(s) addresses"
        raise AttachError("links", str(error), remedy) from None


def _is_a(value: Any) -> str:
    return f"it is a {type(value).__name__}"


def _check_watched(parts: Sequence[Any], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for part in parts:
        if not isinstance(part, torch.nn.Module):
            remedy = "Give a torch.nn.Module, or a list of those that make up the model"
            raise AttachError("model", _is_a(part), remedy)
    if not parts:
        raise AttachError("model", "it is an empty list", "Give the modules to train")
    owned = set(map(id, parameters(parts)))
    for optimizer in optimizers:
        if not owned.intersection(map(id, trained_by([optimizer]))):
            problem = "it trains no parameter of the model"
            if len(optimizers) > 1:
                problem = f"the {type(optimizer).__name__} among them trains none of the model"
            raise AttachError("optimizer", problem, "Make it from model.parameters()")
    for argument, watched in (("optimizer", optimizers), ("model", parts)):
        if any(guard_of(each) is not None for each in watched):
            raise AttachError(
                argument,
                "it has a guard already",
                f"Go on with that one, spikeguard.guard_of({argument}), or finish() it first",
            )


def _check_state(argument: str, item: Any) -> None:
    if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
        raise AttachError(
            argument,
            f"{type(item).__name__} has no state_dict() and load_state_dict()",
            "Give objects that have both, so that a rollback can take them back",
        )


def _check_count(argument: str, value: Any, otherwise: str = "") -> None:
    try:
        count = whole(value)
    except ValueError:
        problem = f"it is {value!r:.80}"
        raise AttachError(argument, problem, f"Give a whole number{otherwise}") from None
    if count < 1:
        raise AttachError(argument, f"it is {value}", f"Give at least 1{otherwise}")
