"""Rules for clipping gradients: `attach(clip=...)` applies one inside the step,
`clip_grad_norm_(parameters, rule)` without a guard.

Law: a rule turns norms into factors on the device; it never reads a gradient or a host value.
"""

from spikeguard.optim.clipping.plain import (
    ClipResult as ClipResult,
    clip_grad_norm_ as clip_grad_norm_,
    rule_of as rule_of,
)
from spikeguard.optim.clipping.rules import (
    Clipped as Clipped,
    ClipSignal as ClipSignal,
    Rule as Rule,
)
from spikeguard.optim.clipping.zclip import ZClip as ZClip
