"""The decoder-only transformer: pre-norm, RMSNorm, SwiGLU, rotary positions, bytes in, bytes out.

Pure PyTorch. Knows nothing of data, devices, optimizers, ranks or the guard. Shapes: B rows, T
positions, C channels (`width`), H heads, D = C / H channels a head, V = 256.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # every byte is a token
INIT_STD = 0.02  # GPT-2


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model."""

    width: int
    layers: int
    heads: int
    hidden: int  # of the SwiGLU, about 8/3 of the width
    context: int  # longest sequence, in bytes


class Rotary(nn.Module):
    """Rotary positions (RoFormer, arXiv 2104.09864), halves rotated as in Llama."""

    def __init__(self, head_width: int, context: int, theta: float = 10_000.0) -> None:
        super().__init__()
        frequency = theta ** (-torch.arange(0, head_width, 2) / head_width)
        angle = torch.outer(torch.arange(context), frequency)[:, None]  # (T, 1, D/2)
        self.register_buffer("cos", torch.cat((angle.cos(), angle.cos()), -1), persistent=False)
        self.register_buffer("sin", torch.cat((-angle.sin(), angle.sin()), -1), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Turn each pair of channels of `x` (..., T, H, D) by an angle that grows with T."""
        length, half = x.size(-3), x.size(-1) // 2
        turned = x * self.cos[:length] + x.roll(half, dims=-1) * self.sin[:length]
        return turned.type_as(x)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        b, t, c = x.shape
        qk, v = self.qkv(x).split((2 * c, c), dim=-1)
        q, k = rotary(qk.view(b, t, 2, self.heads, -1).movedim(2, 0)).transpose(2, 3)
        v = v.view(b, t, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(b, t, c))
        return mixed


class SwiGLU(nn.Module):
    """The gated feed-forward layer (arXiv 2002.05202)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        mixed: Tensor = self.out(F.silu(gate) * up)
        return mixed


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.feed = SwiGLU(shape)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


class Transformer(nn.Module):
    """The whole model. `forward(tokens, targets)` is the mean loss in nats a byte."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.rotary = Rotary(shape.width // shape.heads, shape.context)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self._initialise()

    def logits(self, tokens: Tensor) -> Tensor:
        """(B, T) bytes as int64 to (B, T, V)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rotary)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy over all B·T targets, fp32, a scalar on the device."""
        scores = self.logits(tokens).float()
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    def _initialise(self) -> None:
        """Normal(0, 0.02); what writes into the residual stream is scaled by depth (GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                depth = math.sqrt(2 * self.shape.layers) if name.endswith(".out.weight") else 1.0
                nn.init.normal_(parameter, std=INIT_STD / depth)
