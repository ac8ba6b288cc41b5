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

After a valid `attach()` nothing here raises into the loop, waits for the network or makes the
device wait, except that a half-applied command ends the attempt (`AttemptAborted`).
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spikeguard.assembly import attach as attach
    from spikeguard.commands.mitigations import Mitigation as Mitigation
    from spikeguard.data.by_position import by_position as by_position
    from spikeguard.errors import (
        AttachError as AttachError,
        AttemptAborted as AttemptAborted,
        ResumeError as ResumeError,
        SpikeguardError as SpikeguardError,
    )
    from spikeguard.guard import Guard as Guard, guard_of as guard_of
    from spikeguard.ranks.ranks import Ranks as Ranks
    from spikeguard.settings import Settings as Settings
    from spikeguard.state.checkpoints import (
        CheckpointDirectory as CheckpointDirectory,
        UserCheckpoints as UserCheckpoints,
    )
else:
    _PLACES = {
        "assembly": "attach",
        "commands.mitigations": "Mitigation",
        "data.by_position": "by_position",
        "errors": "AttachError AttemptAborted ResumeError SpikeguardError",
        "guard": "Guard guard_of",
        "ranks.ranks": "Ranks",
        "settings": "Settings",
        "state.checkpoints": "CheckpointDirectory UserCheckpoints",
    }
    __all__ = [name for names in _PLACES.values() for name in names.split()]

    def __getattr__(name: str) -> object:
        """Import what is asked for: torch is not needed by `spikeguard sync` and `journal`."""
        place = next((place for place, names in _PLACES.items() if name in names.split()), None)
        if place is None:
            raise AttributeError(f"module 'spikeguard' has no attribute {name!r}")
        try:
            found = getattr(import_module(f"spikeguard.{place}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(
                f"spikeguard.{name} needs torch, which this Python lacks ({sys.executable}): "
                "install spikeguard into the environment that your training job runs in"
            ) from None
        globals()[name] = found
        return found
