"""What a project changes in the table of remedies: switched off, surer first, or another shape.

Invariants: frozen. What is left out stays as the table has it; what a change names is checked
field by field, and the error names field, limit and remedy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from spikeguard_core.policy.remedies import GoBack, Rate, Remedy, Skip
from spikeguard_core.setting_fields import setting


@dataclass(frozen=True, slots=True)
class OwnRemedy:
    """Changes of the rows of one diagnosis; None: as the table has it."""

    use: bool = setting(True, "false: treated as a cause that is not known")
    sure: float | None = setting(None, "confidence in the cause from which the row holds", 0.0, 1.0)
    back: GoBack | None = setting(None, "to which target a rollback goes")
    skip: Skip | None = setting(None, "which batches it leaves out")
    again: Skip | None = setting(None, "the same once it came back with the batches of its onset")
    rate: Rate | None = setting(None, "at which learning rate the run goes on")
    lr_factor: float | None = setting(
        None, "of the learning rate, instead of the policy's", 0.001, 0.999
    )
    lr_steps: int | None = setting(
        None, "at the lowered learning rate, instead of the policy's", 1, 1_000_000
    )
    stop_after: int | None = setting(
        None, "times it came back after which the run is stopped instead", 1, 100
    )

    def over(self, row: Remedy) -> Remedy:
        """`row` with what is changed."""
        changed = {name: value for name, value in self.plain().items() if name != "use"}
        return replace(row, **{name: getattr(self, name) for name in changed})

    def plain(self) -> dict[str, Any]:
        """As it is read, without what is left as it is."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        words = {n: v.value if isinstance(v, StrEnum) else v for n, v in given.items()}
        return {name: value for name, value in words.items() if name != "use" or not value}
