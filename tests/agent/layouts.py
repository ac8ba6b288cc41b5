"""One model, laid over ranks in every way that people train it: which rank holds what of it.

A layout gives a rank's own model, whose gradients are those of the whole one, cut as it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from spikeguard import Ranks

WIDTH, LAYERS, EXPERTS = 8, 4, 4


class Layer(nn.Module):
    """A matrix, a bias, and experts that all see everything."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.randn(WIDTH) / 3)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2) / 3)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(x @ self.weight + self.bias)
        each = torch.einsum("bi,eih,ejh->ebj", out, self.experts, self.experts)
        return out + torch.tanh(each).sum(0)


class Whole(nn.Module):
    """All layers, with names that say which they are."""

    layers: nn.ModuleDict

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleDict({str(n): Layer() for n in range(LAYERS)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


FIELDS = {field.name for field in fields(Ranks)}


def ranks_in(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `attach`, of which those about the ranks are given by their own names."""
    own = {name: value for name, value in stated.items() if name in FIELDS}
    rest = {name: value for name, value in stated.items() if name not in FIELDS}
    return {**rest, "ranks": Ranks(**own)} if own else rest


class Laid(NamedTuple):
    """What one rank holds, and what its loop says to `attach()`."""

    model: Whole
    stated: dict[str, Any]
    experts: slice = slice(None)  # those of a plain tensor here
    renamed: str = ""  # what a stage calls its first layer, where not as the whole model


def _stage(pipeline: DeviceMesh, renamed: bool = False) -> Laid:
    """The layers of this rank's stage, in plain tensors."""
    number, stages = pipeline.get_local_rank(), pipeline.size()
    model, each = Whole(), LAYERS // stages
    kept = range(number * each, (number + 1) * each)
    names = {n: str(n - kept[0] if renamed else n) for n in kept}
    model.layers = nn.ModuleDict({name: model.layers[str(n)] for n, name in names.items()})
    stated = {"pipeline": pipeline, "has_loss": number == stages - 1}
    return Laid(model, stated, renamed=str(kept[0]) if renamed else "")


def _shard(model: Whole, mesh: DeviceMesh) -> None:
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _cut(model: Whole, mesh: DeviceMesh, experts: Any, rest: Any) -> None:
    """DTensors made by hand, each cut as it is said: experts, and everything else."""
    for layer in model.layers.values():
        for name, parameter in list(layer.named_parameters()):
            placements = experts if name == "experts" else rest(name)
            whole = DTensor.from_local(parameter.detach(), mesh, [Replicate()] * mesh.ndim)
            layer.register_parameter(name, nn.Parameter(whole.redistribute(mesh, placements)))


def _meshes(names: str, *sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=_named(names))


def _of(mesh: DeviceMesh, names: str) -> DeviceMesh:
    return mesh[_named(names)]


def _named(names: str) -> tuple[str, ...]:
    """With the rank: FSDP2 keeps meshes by name, also those of a rank that was played before."""
    return tuple(f"{name}_{dist.get_rank()}" for name in names.split())


def replicated(_ranks: int) -> Laid:
    return Laid(Whole(), {"replicated": True})


def hsdp(ranks: int) -> Laid:
    model = Whole()
    _shard(model, _meshes("replicate shard", 2, ranks // 2))
    return Laid(model, {})


def small(ranks: int) -> Laid:
    """Over a mesh of one rank: all hold everything, and no mesh says so."""
    model = Whole()
    _shard(model, _of(_meshes("dp tp", ranks, 1), "tp"))
    return Laid(model, {"replicated": True})


def half(ranks: int) -> Laid:
    """The first layer alone is sharded."""
    model = Whole()
    fully_shard(model.layers["0"], mesh=_meshes("fsdp", ranks))
    return Laid(model, {"replicated": True})


def twice(ranks: int) -> Laid:
    """The first layer over a mesh of its own, which is of all ranks as that of the others is."""
    model = Whole()
    one, other = _meshes("fsdp", ranks), _meshes("replicate shard", 1, ranks)
    for name, layer in model.layers.items():
        fully_shard(layer, mesh=one if name == "0" else other)
    return Laid(model, {})


def _columns(name: str) -> list[Placement]:
    return [Shard(1) if name == "weight" else Replicate()]


def tp(ranks: int) -> Laid:
    model, mesh = Whole(), _meshes("tp", ranks)
    _cut(model, mesh, [Shard(2)], _columns)
    return Laid(model, {})


def fsdp_tp(ranks: int) -> Laid:
    """The matrices cut by both, what is small by FSDP2 alone."""
    model, mesh = Whole(), _meshes("fsdp tp", ranks // 2, 2)
    _cut(model, _of(mesh, "tp"), [Shard(2)], _columns)
    _shard(model, _of(mesh, "fsdp"))
    return Laid(model, {})


def pp(ranks: int) -> Laid:
    return _stage(_of(_meshes("pp", ranks), "pp"))


def pp_named_alike(ranks: int) -> Laid:
    return _stage(_of(_meshes("pp", ranks), "pp"), renamed=True)


def pp_replicated(ranks: int) -> Laid:
    laid = _stage(_of(_meshes("pp dp", 2, ranks // 2), "pp"))
    return laid._replace(stated=laid.stated | {"replicated": True})


def pp_fsdp(ranks: int) -> Laid:
    mesh = _meshes("pp fsdp", 2, ranks // 2)
    laid = _stage(_of(mesh, "pp"))
    _shard(laid.model, _of(mesh, "fsdp"))
    return laid


def pp_fsdp_named_alike(ranks: int) -> Laid:
    mesh = _meshes("pp fsdp", 2, ranks // 2)
    laid = _stage(_of(mesh, "pp"), renamed=True)
    _shard(laid.model, _of(mesh, "fsdp"))
    return laid


def ep(ranks: int) -> Laid:
    """Experts in plain tensors, the rest alike on all ranks."""
    model, group = Whole(), dist.new_group(range(ranks))
    each, rank = EXPERTS // min(ranks, EXPERTS), dist.get_rank()
    own = slice(rank * each, (rank + 1) * each)
    for layer in model.layers.values():
        assert isinstance(layer, Layer)
        layer.experts = nn.Parameter(layer.experts.detach()[own].clone())
    stated = {"shard_groups": {"*.experts": group}, "replicated": True}
    return Laid(model, stated, own)


def ep_fsdp(ranks: int) -> Laid:
    """Experts over one mesh, the rest over another."""
    model = Whole()
    dense, sparse = _meshes("fsdp", ranks), _meshes("ep efsdp", 2, ranks // 2)
    for layer in model.layers.values():
        assert isinstance(layer, Layer)
        experts = DTensor.from_local(layer.experts.detach(), sparse, [Replicate(), Replicate()])
        experts = experts.redistribute(sparse, [Shard(0), Shard(1)])
        for name in ("weight", "bias"):
            whole = DTensor.from_local(getattr(layer, name).detach(), dense, [Replicate()])
            cut = whole.redistribute(dense, [Shard(0)])
            layer.register_parameter(name, nn.Parameter(cut))
        layer.register_parameter("experts", nn.Parameter(experts))
    return Laid(model, {})


Layout = Callable[[int], Laid]
ON_TWO: tuple[Layout, ...] = (replicated, tp, small, half, twice, pp, pp_named_alike, ep)
ON_FOUR: tuple[Layout, ...] = (hsdp, fsdp_tp, pp_replicated, pp_fsdp, ep_fsdp)
MIXED: dict[int, tuple[Layout, ...]] = {2: (pp,), 4: (hsdp, pp_fsdp)}  # AdamW and Muon


def own_part(laid: Laid, whole: Tensor, parameter: Tensor, name: str) -> Tensor:
    """Of `whole` what lies here of `parameter`, in a plain tensor."""
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        shape, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
        return whole[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))].clone()
    return whole[laid.experts].clone() if name.endswith("experts") else whole.clone()


def name_in_whole(laid: Laid, name: str) -> str:
    """What the whole model calls a parameter of this rank's."""
    start, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    return f"{start}.{int(number) + int(laid.renamed or 0)}.{rest}"


def like(parameter: Tensor, part: Tensor) -> Tensor:
    """`part` as a tensor that lies as `parameter` does."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def norm_of(tensors: list[Tensor]) -> float:
    """In double precision."""
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())
