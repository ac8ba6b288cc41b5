"""Rules for clipping gradients: `attach(clip=...)` applies one inside the step,
`clip_grad_norm_(parameters, rule)` without a guard.

Law: a rule turns norms into factors on the device; it never reads a gradient or a host value.
"""

from spikeguard.optim.clipping.adagc import AdaGC
from spikeguard.optim.clipping.plain import ClipResult, clip_grad_norm_, rule_of
from spikeguard.optim.clipping.rules import Clipped, ClipSignal, Rule
from spikeguard.optim.clipping.zclip import Hybrid, ZClip

__all__ = [
    "AdaGC",
    "ClipResult",
    "ClipSignal",
    "Clipped",
    "Hybrid",
    "Rule",
    "ZClip",
    "clip_grad_norm_",
    "rule_of",
]
