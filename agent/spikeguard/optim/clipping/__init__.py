"""Rules for clipping gradients: `guard.clip_(rule)` applies one inside the step.

Law: a rule turns norms into factors on the device; it never reads a gradient or a host value.
"""

from spikeguard.optim.clipping.adagc import AdaGC
from spikeguard.optim.clipping.rules import Clipped, ClipSignal, Fixed, Rule
from spikeguard.optim.clipping.zclip import Hybrid, Toward, ZClip

__all__ = ["AdaGC", "ClipSignal", "Clipped", "Fixed", "Hybrid", "Rule", "Toward", "ZClip"]
