"""What a project changes in the table of remedies: switched off, surer first, or another shape.

Invariants: frozen. What is left out stays as the table has it; what a change names is checked
field by field, and the error names field, limit and remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from spikeguard_core.policy.remedies import Diagnosis, GoBack, Rate, Remedy, Skip
from spikeguard_protocol import ProtocolError


@dataclass(frozen=True, slots=True)
class OwnRemedy:
    """Changes of the rows of one diagnosis; None: as the table has it."""

    use: bool = True  # false: treated as a cause that is not known
    sure: float | None = None  # confidence in the cause from which the row holds
    back: GoBack | None = None  # to which target a rollback goes
    skip: Skip | None = None  # which batches it leaves out
    again: Skip | None = None  # the same once it came back with the batches of its onset
    rate: Rate | None = None  # at which learning rate the run goes on
    lr_factor: float | None = None  # of the learning rate, instead of the policy's
    lr_steps: int | None = None  # at the lowered learning rate, instead of the policy's
    stop_after: int | None = None  # times it came back after which the run is stopped instead

    def over(self, row: Remedy) -> Remedy:
        """`row` with what is changed."""
        changed = {name: value for name, value in self.plain().items() if name != "use"}
        return replace(row, **{name: getattr(self, name) for name in changed})

    def plain(self) -> dict[str, Any]:
        """As `read_remedies` reads it, without what is left as it is."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        words = {n: v.value if isinstance(v, StrEnum) else v for n, v in given.items()}
        return {name: value for name, value in words.items() if name != "use" or not value}


_KNOWN = tuple(entry.name for entry in fields(OwnRemedy))
_SETS: Mapping[str, type[StrEnum]] = {"back": GoBack, "skip": Skip, "again": Skip, "rate": Rate}
RANGES: Mapping[str, tuple[float, float]] = {
    "sure": (0.0, 1.0),
    "lr_factor": (0.001, 0.999),
    "lr_steps": (1, 1_000_000),
    "stop_after": (1, 100),
}
_WHOLE = frozenset({"lr_steps", "stop_after"})


def read_remedies(plain: Any, error: type[ProtocolError]) -> dict[Diagnosis, OwnRemedy]:
    """Read what a person wrote; raise `error` naming the remedy, the field and the limit."""
    if not isinstance(plain, Mapping):
        raise error("remedies", "takes a table of causes", f"Known: {', '.join(Diagnosis)}")
    return {_diagnosis(word, error): _read(word, one, error) for word, one in plain.items()}


def _diagnosis(word: Any, error: type[ProtocolError]) -> Diagnosis:
    try:
        return Diagnosis(word)
    except ValueError:
        known = ", ".join(Diagnosis)
        raise error(f"remedies.{word!s:.40}", "is no cause", f"Known: {known}") from None


def _read(word: str, plain: Any, error: type[ProtocolError]) -> OwnRemedy:
    place = f"remedies.{word}"
    if not isinstance(plain, Mapping):
        raise error(place, "is a table", f"Known: {', '.join(_KNOWN)}")
    for name in plain:
        if name not in _KNOWN:
            raise error(f"{place}.{name!s:.40}", "is no setting", f"Known: {', '.join(_KNOWN)}")
    return OwnRemedy(**{n: _value(f"{place}.{n}", n, v, error) for n, v in plain.items()})


def _value(place: str, name: str, value: Any, error: type[ProtocolError]) -> Any:
    if name == "use":
        if not isinstance(value, bool):
            raise error(place, "is true or false", f"Got {value!r:.60}")
        return value
    if name in _SETS:
        if value not in list(_SETS[name]):
            raise error(place, f"is one of {', '.join(_SETS[name])}", f"Got {value!r:.60}")
        return _SETS[name](value)
    least, most = RANGES[name]
    kinds = (int,) if name in _WHOLE else (int, float)
    if type(value) not in kinds or not least <= value <= most:
        raise error(place, f"lies in [{least:g}, {most:g}]", f"Got {value!r:.60}")
    return value
