"""spikeguard in a training loop: watches it, acts in it when told to, and never harms it.

    guard = spikeguard.attach(model, optimizer, run="gpt-124m-7", scheduler=scheduler)
    guard.resume()
    for batch in guard.batches(loader):
        loss = guard.loss(model(batch))
        loss.backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step(); scheduler.step(); optimizer.zero_grad(set_to_none=True)
        guard.step()
    guard.finish()

Law: after a valid `attach()` nothing here raises into the loop, waits for the network or makes
the device wait, except that a half-applied command ends the attempt (`AttemptAborted`).
"""

import sys
from typing import NoReturn

try:
    from spikeguard.attach import attach
    from spikeguard.commands.mitigations import Mitigation
    from spikeguard.data.by_position import by_position
    from spikeguard.errors import AttachError, AttemptAborted, ResumeError, SpikeguardError
    from spikeguard.guard import Guard
    from spikeguard.ranks.ranks import Ranks
    from spikeguard.registry import guard_of
    from spikeguard.settings import Settings
    from spikeguard.state.checkpoints import CheckpointDirectory
    from spikeguard.state.user_checkpoints import UserCheckpoints
    from spikeguard.uplink.tracker import Forward
except ModuleNotFoundError as error:  # `spikeguard sync` and `journal` do without torch
    if error.name != "torch":
        raise

    def __getattr__(name: str) -> NoReturn:
        if name not in __all__:
            raise AttributeError(f"module 'spikeguard' has no attribute {name!r}")
        raise ImportError(
            f"spikeguard.{name} needs torch, which this Python lacks ({sys.executable}): install "
            "spikeguard into the environment that your training job runs in"
        )


__all__ = [
    "AttachError",
    "AttemptAborted",
    "CheckpointDirectory",
    "Forward",
    "Guard",
    "Mitigation",
    "Ranks",
    "ResumeError",
    "Settings",
    "SpikeguardError",
    "UserCheckpoints",
    "attach",
    "by_position",
    "guard_of",
]
