"""Bodies about the settings of policy and detection, with unit, default and range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, Literal

from pydantic import Field

from spikeguard_protocol import Verb
from spikeguard_server.detectors import find, names, settings_with
from spikeguard_server.domain.detection.detectors.contract import Setting
from spikeguard_server.domain.policy.meanings import APPROVAL, POLICY
from spikeguard_server.domain.policy.settings import (
    APPROVAL_LIMITS,
    DEFAULT_POLICY,
    LIMITS,
    ApprovalMode,
    ApprovalRule,
    Limit,
    Policy,
    policy_to_mapping,
)
from spikeguard_server.http.bodies.run_shapes import Shape, example

SettingType = Literal["whole", "number", "text", "yes_no", "word", "table"]
_NOT_SET: Final = ("version", "scope", "halted", "detection", "approval")
_TYPES: Final = {"int": "whole", "float": "number", "float | None": "number", "str": "text"}
_EXAMPLE: Final[dict[str, Any]] = {
    "name": "patience_steps", "type": "whole", "default": 20, "least": 0, "most": 1000000,
    "unit": "steps", "meaning": "after the onset, before a climbing loss is acted on", "words": [],
}  # fmt: skip


class SettingBody(Shape):
    """One field."""

    model_config = example(_EXAMPLE)

    name: str
    type: SettingType = Field(description="table: lists and tables, as JSON")
    default: Any
    least: float | None
    most: float | None
    unit: str
    meaning: str
    words: list[str] = Field(description="what it may be, of type word")


class DetectorBody(Shape):
    """A detector that can be chosen, with all its settings."""

    model_config = example({"name": "robust_trend", "meaning": "the default", "settings": []})

    name: str
    meaning: str
    settings: list[SettingBody]


class PolicySettings(Shape):
    """Every setting that a policy has, in the order of its reference."""

    model_config = example({"policy": [_EXAMPLE], "approval": [], "verbs": [], "detectors": []})

    policy: list[SettingBody]
    approval: list[SettingBody] = Field(description="of each verb")
    verbs: list[str]
    detectors: list[DetectorBody]


def policy_settings() -> PolicySettings:
    """As this server knows them, installed detectors among them."""
    return PolicySettings(
        policy=[_of_policy(one.name, str(one.type)) for one in fields(Policy)
                if one.name not in _NOT_SET],
        approval=[_of_approval(one.name) for one in fields(ApprovalRule)],
        verbs=[verb.value for verb in Verb],
        detectors=[_detector(name) for name in names()],
    )  # fmt: skip


def _of_policy(name: str, annotation: str) -> SettingBody:
    default = policy_to_mapping(DEFAULT_POLICY).get(name)
    kind = _TYPES.get(annotation, "table")
    return _body(name, kind, default, LIMITS.get(name), POLICY[name])


def _of_approval(name: str) -> SettingBody:
    default = getattr(ApprovalRule(), name)
    if isinstance(default, ApprovalMode):
        words = [mode.value for mode in ApprovalMode]
        return _body(name, "word", default.value, None, APPROVAL[name], words)
    kind = "number" if isinstance(default, float) else "whole"
    return _body(name, kind, default, APPROVAL_LIMITS[name], APPROVAL[name])


def _detector(name: str) -> DetectorBody:
    meaning = (find(name).__doc__ or "").strip().partition("\n")[0]
    return DetectorBody(
        name=name, meaning=meaning, settings=[_of_detector(one) for one in settings_with(name)]
    )


def _of_detector(one: Setting) -> SettingBody:
    limit = Limit(one.least, one.most, one.unit)
    return _body(one.name, "whole" if one.whole else "number", one.default, limit, one.meaning)


def _body(
    name: str, kind: Any, default: Any, limit: Limit | None, meaning: str,
    words: Sequence[str] = (),
) -> SettingBody:  # fmt: skip
    least, most, unit = limit or (None, None, "")
    return SettingBody(
        name=name, type=kind, default=default, least=least, most=most, unit=unit,
        meaning=meaning, words=[*words],
    )  # fmt: skip
