"""Which group of an identity provider gives which role, in all projects or in one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from spikeguard_protocol import Role
from spikeguard_protocol.identity import NAME_PATTERN

PEOPLE: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)  # each may what the one before may


@dataclass(frozen=True, slots=True)
class Access:
    """What a session may do."""

    role: Role
    project: str | None = None  # None: every one


def read_accesses(text: str) -> tuple[tuple[str, Access], ...]:
    """Group and access, pair by pair, of `ml-oncall=operator, vision=operator@vision, *=viewer`;
    raise `ValueError` for what is none."""
    return tuple(_pair(part.strip()) for part in text.split(",") if part.strip())


def _pair(text: str) -> tuple[str, Access]:
    group, _, given = text.rpartition("=")
    word, at, project = given.strip().partition("@")
    role = next((role for role in PEOPLE if role.value == word), None)
    if not group.strip() or role is None or (at and not NAME_PATTERN.fullmatch(project)):
        raise ValueError(f"Got {text!r:.60}")
    return group.strip(), Access(role, project or None)


def accesses_of(groups: Any, given: Collection[tuple[str, Access]]) -> frozenset[Access]:
    """What somebody in `groups`, a list or one word, may do; `*` is everybody."""
    words = groups if isinstance(groups, list) else [groups]
    mine = {word for word in words if isinstance(word, str)} | {"*"}
    return frozenset(access for group, access in given if group in mine)


def gives(accesses: Collection[Access], role: Role, project: str | None) -> bool:
    """Whether they give the role, or more than it, there."""
    return any(
        access.project in (None, project) and PEOPLE.index(access.role) >= PEOPLE.index(role)
        for access in accesses
    )


def best_access(accesses: Collection[Access], project: str = "") -> Access | None:
    """The one of `accesses` that a session gets; with `project` the best one for that. None: none
    reaches there."""
    fitting = [a for a in accesses if not project or a.project in (None, project)]
    if not fitting:
        return None
    best = max(fitting, key=lambda a: (PEOPLE.index(a.role), a.project is None, a.project or ""))
    return Access(best.role, project) if project else best
