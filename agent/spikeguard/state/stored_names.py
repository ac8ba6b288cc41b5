"""What shared tensors are called in a checkpoint, and which part of each this rank holds.

Invariants: an optimizer's tensor is called by its parameter, so the order of groups does not
matter to who reads it. Names are made once for each place. Where it is not known how a tensor lies
nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spikeguard.optim.optimizers import names_of, trained_by
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.model_parts import Modules, named_parameters, state_of
from spikeguard.ranks.shards import local
from spikeguard.state.replicated_parts import Box, part_of


class StoredNames:
    """Of what `TrainingState.capture` holds."""

    def __init__(
        self, modules: Modules, optimizers: Sequence[Optimizer], topology: Topology
    ) -> None:
        self._modules, self._topology = modules, topology
        self._known: dict[str, str] = {}  # by place
        self._parameters = dict(named_parameters(modules, remove_duplicate=False))
        self._parameter_names = {id(p): n for n, p in named_parameters(modules)}
        several = len(optimizers) > 1
        self.moments = tuple(  # where the state of each optimizer begins
            (f"optimizer.{name}.state." if several else "optimizer.state.", optimizer)
            for name, optimizer in zip(names_of(optimizers), optimizers, strict=True)
        )

    def name_at(self, place: str) -> str:
        """What a checkpoint calls the shared tensor at `place` of `capture()`.

        An optimizer's is called by its parameter, as torch's `get_optimizer_state_dict` does.
        Stages may name theirs alike, so each begins with its stage.
        """
        stored = self._known.get(place)
        if stored is None:
            stored = self._known[place] = self._name_by_parameter(place)
        return stored

    def _name_by_parameter(self, place: str) -> str:
        found = self._moment_at(place)
        named = self._parameter_names.get(id(found[0])) if found is not None else None
        if found is not None and named is not None:
            place = f"optimizer.state.{named}.{found[1]}"
        return f"stage{self._topology.stage}.{place}" if self._topology.stages > 1 else place

    def _moment_at(self, place: str) -> tuple[Tensor, str] | None:
        """The parameter and the key of `optimizer[.NAME].state.NUMBER.KEY`."""
        for prefix, optimizer in self.moments:
            number, _, key = place.removeprefix(prefix).partition(".")
            if place.startswith(prefix) and number.isdigit() and key:
                return trained_by([optimizer])[int(number)], key
        return None

    def box_of(self, name: str, size: tuple[int, ...]) -> Box:
        """Where this rank's part lies in a tensor of a checkpoint of other ranks."""
        if self._topology.stages > 1 or self._topology.groups or not self._topology.known:
            raise ValueError(
                "this job's ranks hold parts that no mesh of a DTensor describes (pipeline "
                "stages, shard groups, or nobody says what): it needs the number that saved it"
            )
        like = self._like(name)
        part = part_of(like) if like is not None else None
        if part is not None and part.size == size:
            return part.offsets, tuple(part.tensor.shape)
        if isinstance(like, DTensor) and tuple(like.shape) == size and not local(like).numel():
            return (0,) * like.ndim, tuple(local(like).shape)
        if like is None or (isinstance(like, DTensor) and size):
            raise ValueError(f"this job does not tell which part of {name} a rank is to hold")
        return (0,) * len(size), size

    def _like(self, name: str) -> Tensor | None:
        """The live tensor that lies as the one that a checkpoint calls `name`."""
        if name.startswith("model."):
            live = state_of(self._modules).get(name.removeprefix("model."))
            return live if isinstance(live, Tensor) else None
        named = name.removeprefix("optimizer.state.").rpartition(".")[0]
        if named in self._parameters:
            return self._parameters[named]
        found = self._moment_at(name)  # of a parameter that is not the model's
        return found[0] if found is not None else None
