"""The public call of the agent: what it takes, and what each argument means.

Law: a wrong call raises `AttachError` that names the argument and the remedy, on every rank alike.
What is done with the arguments stands in `assembly`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch

from spikeguard.arguments import Arguments
from spikeguard.assembly import assemble
from spikeguard.commands.mitigations import Mitigation
from spikeguard.data.batch_names import NameBatch
from spikeguard.data.feed import DataFeed
from spikeguard.guard import Guard
from spikeguard.measure.batch_contents import Decode
from spikeguard.optim.clipping import Rule
from spikeguard.settings import Settings
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.topology.layout import Ranks
from spikeguard.uplink.tracker import Forward


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: Any,
    *,
    run: str | None = None,
    project: str | None = None,
    scheduler: Any = None,
    state: Sequence[Any] = (),
    checkpoints: CheckpointDirectory | None = None,
    server: str | None = None,
    token: str | None = None,
    directory: str | PathLike[str] | None = None,
    tokens_per_step: int | None = None,
    micro_batches: int = 1,
    settings: Settings | None = None,
    feed: type[DataFeed] = DataFeed,
    forward: Forward | None = None,
    links: Mapping[str, str] | None = None,
    name_batch: NameBatch | None = None,
    decode: Decode | None = None,
    replicated: bool | None = None,
    pipeline: Ranks | None = None,
    has_loss: bool | None = None,
    shard_groups: Mapping[str, Ranks] | None = None,
    tied: Sequence[Sequence[str]] | None = None,
    clip: str | Rule | None = None,
    mitigations: Sequence[Mitigation] = (),
) -> Guard:
    """Watch `model` and `optimizer`; returns the guard that the loop calls.

    `model`: one module, or a list of those that make it up. `optimizer`: one that trains all of it,
    or a list, a dict or a container of several, each of which trains its own parameters.
    `run`, `project`, `server`, `token` also come from SPIKEGUARD_RUN, _PROJECT, _SERVER, _TOKEN (or
    _TOKEN_FILE); without a server the guard works offline. `state`: whatever else has a
    `state_dict` and must go back in a rollback (an EMA, a GradScaler). `directory`: journal and
    outbox, shared by all attempts of the run; by default `spikeguard` in the folder of
    the checkpoints.
    `micro_batches`: items of the loader per optimizer step. `tokens_per_step`: over all ranks.
    `forward`: the user's own tracker, told of every step too (rank 0).
    `links`: where the run is shown, name to http(s) address, at most 8; a run of Weights & Biases
    or MLflow that is active here, or that their variables name, is found and added.
    `feed`: `FrameworkFeed` where a framework owns the iterator (`spikeguard.integrations`).
    `name_batch`: told an item of the loader, returns what lies in it, a str or several; called for
    items that are left out, and beside the loop for those of an incident, so that the record says
    which documents they were.
    `decode`: told a list of token ids, returns text (`tokenizer.decode`); called beside the loop
    for the worst sequence of an incident's batches. Without it no text leaves the job.
    `replicated`: whether every rank has the same weights and, at each optimizer's step, the same
    gradients; by default as DistributedDataParallel around the model says. Without it, and without
    DTensors, several ranks are only reported of: what one of them alone drops would part them.
    `pipeline`: the process group, or mesh of one dimension, of the pipeline's stages. `has_loss`:
    whether this rank computes the loss, as those of the last stage do; elsewhere `guard.loss` notes
    nothing. `shard_groups`: by pattern of parameter names (`*.experts.*`) the group whose ranks
    hold different parts of them, where no mesh of a DTensor says so. `tied`: names by which several
    stages call one parameter of which each holds a copy, as an embedding tied to the last layer; by
    default what has an embedding's values.
    `clip`: a rule that clips every step, "zclip", "adagc", "hybrid" or an object of
    `spikeguard.optim.clipping`; a loop that calls `guard.clip_grad_norm_(max_norm)` gets at most
    that norm, one that clips by no call is clipped before its update.
    `mitigations`: what an order may switch on for some steps: `Mitigation(name, apply, undo, cost)`
    each.
    """
    return assemble(
        Arguments(
            model=model,
            optimizer=optimizer,
            run=run,
            project=project,
            scheduler=scheduler,
            state=state,
            checkpoints=checkpoints,
            server=server,
            token=token,
            directory=directory,
            tokens_per_step=tokens_per_step,
            micro_batches=micro_batches,
            settings=settings,
            feed=feed,
            forward=forward,
            links=links,
            name_batch=name_batch,
            decode=decode,
            replicated=replicated,
            pipeline=pipeline,
            has_loss=has_loss,
            shard_groups=shard_groups,
            tied=tied,
            clip=clip,
            mitigations=mitigations,
        )
    )
