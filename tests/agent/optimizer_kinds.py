"""Optimizers of the shapes that training code has, for the matrices of a model and the rest."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim

Parameters = Sequence[Tensor]


class Orthogonal(optim.Optimizer):
    """Momentum, made nearly orthogonal, in its own loop; a missing gradient stands for zeros."""

    def __init__(self, parameters: Any, lr: float = 0.02) -> None:
        super().__init__(list(parameters), {"lr": lr, "momentum": 0.9})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                state = self.state[p]
                if not state:
                    state["buffer"], state["count"] = torch.zeros_like(p), 0
                state["count"] += 1
                kept = state["buffer"].mul_(group["momentum"]).add_(p.grad)
                p.sub_(_orthogonal(kept), alpha=group["lr"])


def _orthogonal(matrix: Tensor) -> Tensor:
    """Near the nearest orthogonal matrix: the cubic iteration of Newton and Schulz."""
    turned: Tensor = matrix / (matrix.norm() + 1e-7)
    for _ in range(12):
        turned = 1.5 * turned - 0.5 * turned @ turned.mT @ turned
    return turned


class Combined(optim.Optimizer):
    """Two kinds of groups: matrices are stacked and moved together, the rest by Adam's rule."""

    def __init__(self, matrices: Parameters, rest: Parameters) -> None:
        groups = [{"params": [m], "kind": "stacked", "lr": 0.02} for m in matrices]
        super().__init__([*groups, {"params": list(rest), "kind": "adam", "lr": 1e-2}], {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            grads = [p.grad for p in group["params"]]
            if group["kind"] == "stacked":
                self._stacked(group, torch.stack(grads))
            else:
                self._adam(group)

    def _stacked(self, group: dict[str, Any], grads: Tensor) -> None:
        state = self.state[group["params"][0]]
        kept = state.setdefault("momentum_buffer", torch.zeros_like(grads))
        kept.lerp_(grads, 0.1)
        for p, one in zip(group["params"], kept, strict=True):
            p.sub_(_orthogonal(one), alpha=group["lr"])

    def _adam(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state |= {
                    "step": 0,
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
            state["step"] += 1
            state["exp_avg"].lerp_(p.grad, 0.1)
            state["exp_avg_sq"].lerp_(p.grad.square(), 0.05)
            whole = state["exp_avg_sq"] / (1 - 0.95 ** state["step"])
            p.sub_(state["exp_avg"] / (whole.sqrt() + 1e-8), alpha=group["lr"])


class Preconditioned(optim.Optimizer):
    """Keeps lists of matrices for each parameter, and something for all of them together."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {"lr": 1e-3})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        whole: Any = self.state["whole"]  # type: ignore[index]
        whole["steps"] = whole.get("steps", 0) + 1
        whole["seen"] = whole.get("seen", torch.zeros(())) + 1.0
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                grad = p.grad if p.ndim == 2 else p.grad[:, None]
                if not state:
                    state["sides"] = [torch.eye(size) * 1e-3 for size in grad.shape]
                state["sides"][0] += grad @ grad.mT
                state["sides"][1] += grad.mT @ grad
                left, right = (torch.linalg.inv(side) for side in state["sides"])
                p.sub_((left @ grad @ right).reshape(p.shape).clamp(-1, 1), alpha=group["lr"])


class Wandering(optim.Optimizer):
    """Counts its steps and draws random numbers in attributes that its state has nothing of."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {"lr": 1e-2})
        self.steps, self.random, self.noise = 0, random.Random(5), torch.Generator().manual_seed(6)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.steps += 1
        by = self.random.random() / self.steps
        for group in self.param_groups:
            for p in group["params"]:
                drawn = torch.rand(p.shape, generator=self.noise)
                p.sub_(p.grad * drawn + by * 1e-3, alpha=group["lr"])


class Eight(Tensor):
    """Eight bits a value and one scale; read as a tensor of fp32."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Eight:
        made: Eight = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale = codes, scale
        return made

    def __init__(self, codes: Tensor, scale: Tensor) -> None: ...

    def __tensor_flatten__(self) -> tuple[list[str], list[Any]]:
        return ["codes", "scale"], []

    @classmethod
    def __tensor_unflatten__(
        cls, inside: Mapping[str, Tensor], context: Any, size: Any = None, stride: Any = None
    ) -> Eight:
        del context, size, stride
        return cls(inside["codes"], inside["scale"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inside = args[0] if isinstance(args[0], Eight) else None
        if inside is not None and func in (
            torch.ops.aten.clone.default,
            torch.ops.aten.detach.default,
        ):
            return cls(inside.codes.clone(), inside.scale.clone())
        args = [a.value() if isinstance(a, Eight) else a for a in args]
        return func(*args, **(kwargs or {}))

    def value(self) -> Tensor:
        return self.codes.float() * self.scale

    def __deepcopy__(self, _: Any) -> Eight:
        return Eight(self.codes.clone(), self.scale.clone())

    def keep(self, value: Tensor) -> None:
        """Rounded up from the middle, so that packing what was unpacked is not the same."""
        self.scale.copy_(value.abs().amax() / 127.5 + 1e-12)
        self.codes.copy_((value / self.scale + 0.4).floor().clamp(-128, 127).to(torch.int8))


class Packed(optim.Optimizer):
    """Momentum in eight bits, in tensors that are made of others."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {"lr": 1e-2})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    codes = torch.zeros_like(p, dtype=torch.int8)
                    state["exp_avg_sq"] = Eight(codes, torch.zeros(()))
                value = state["exp_avg_sq"].value() * 0.9 + p.grad
                state["exp_avg_sq"].keep(value)
                p.sub_(value, alpha=group["lr"])


class Sam(optim.Optimizer):
    """Shares groups and state with the optimizer that makes the update, as published ones do."""

    def __init__(self, parameters: Any, inner: type[optim.Optimizer], **given: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, **given})
        self.inner = inner(self.param_groups, **given)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self.inner.step()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.inner.param_groups, self.inner.state = self.param_groups, self.state


class Lookahead(optim.Optimizer):
    """Pulls the weights of the optimizer inside back to slow ones, and saves both its own way."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer, self.defaults = optimizer, optimizer.defaults
        self._optimizer_step_pre_hooks: Any = OrderedDict()
        self._optimizer_step_post_hooks: Any = OrderedDict()
        self._patch_step_function()
        self.state = defaultdict(dict)
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["slow"] = p.detach().clone()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        for p, state in self.state.items():
            p.lerp_(state["slow"], 0.5)
            state["slow"].copy_(p)

    def state_dict(self) -> dict[str, Any]:
        slow = [state["slow"] for state in self.state.values()]
        return {"slow": slow, "inside": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict["inside"])
        for state, slow in zip(self.state.values(), state_dict["slow"], strict=True):
            state["slow"] = slow.clone()


class Holder(optim.Optimizer):
    """Steps others, and has groups of its own that no rate is read from; saves after a step."""

    def __init__(self, *optimizers: optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for each in self.optimizers:
            each.step()

    def state_dict(self) -> dict[str, Any]:
        for each in self.optimizers:
            each.step()
        return {f"state.{n}": each.state_dict() for n, each in enumerate(self.optimizers)}


def fused(parameters: Parameters, lr: float = 1e-2) -> optim.AdamW:
    return optim.AdamW(parameters, lr=lr, fused=True)


KINDS: dict[str, Callable[[Parameters, Parameters], Any]] = {
    "fused adamw": lambda m, r: fused([*m, *r]),
    "adamw": lambda m, r: optim.AdamW([*m, *r], lr=1e-2),
    "sgd with momentum": lambda m, r: optim.SGD([*m, *r], lr=1e-2, momentum=0.9),
    "adafactor": lambda m, r: optim.Adafactor([*m, *r], lr=1e-2),
    "two fused adamws": lambda m, r: [fused(m), fused(r, 1e-3)],
    "fused adamw and fused sgd": lambda m, r: [
        fused(m),
        optim.SGD(r, lr=1e-2, momentum=0.9, fused=True),
    ],
    "adamw and muon": lambda m, r: [fused(r), optim.Muon(m, lr=0.02)],
    "a loop of its own beside adamw": lambda m, r: (Orthogonal(m), fused(r)),
    "two kinds of groups": Combined,
    "lists of matrices": lambda m, r: Preconditioned([*m, *r]),
    "attributes of its own": lambda m, r: [Wandering(m), fused(r)],
    "eight bits": lambda m, r: [Packed(m), optim.Adam(r, lr=1e-2)],
    "container": lambda m, r: Holder(fused(r), Orthogonal(m)),
}
