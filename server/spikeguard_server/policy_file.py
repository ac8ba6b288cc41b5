"""A policy as somebody wrote it down: TOML or YAML to plain values.

Law: says what is wrong with the text and where; what the values mean is the domain's to judge. A
YAML file holds no aliases: a few lines of them can stand for more than a machine holds. Nor is a
text deep: time and memory to read it grow with the square of that, a dotted key of TOML included.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from spikeguard_server.domain.policy.settings import PolicyError

if TYPE_CHECKING:
    from yaml import Node, Token

MAX_CHARACTERS = 20_000  # YAML of 100,000 takes seconds to read
MAX_DEPTH = 50


class PolicyFormat(StrEnum):
    """How a policy is written."""

    TOML = "toml"
    YAML = "yaml"


def form_of(name: str) -> PolicyFormat:
    """The form that a file's name tells: `.yaml` and `.yml` are YAML, the rest TOML."""
    return PolicyFormat.YAML if name.lower().endswith((".yaml", ".yml")) else PolicyFormat.TOML


def read_policy_text(text: str, form: PolicyFormat) -> dict[str, Any]:
    """What `text` says; raise `PolicyError` where it is no table in that form."""
    if len(text) > MAX_CHARACTERS:
        raise PolicyError("document", f"has at most {MAX_CHARACTERS} characters", "Shorten it")
    return _toml(text) if form is PolicyFormat.TOML else _yaml(text)


def _toml(text: str) -> dict[str, Any]:
    _check_dots(text)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # what is no TOML, or a number of too many digits
        raise PolicyError("document", "is TOML", f"{error}"[:200]) from None
    except RecursionError:
        raise _too_deep() from None


def _check_dots(text: str) -> None:
    """A dotted key stands on one line: 100 kB of one takes gigabytes to read."""
    for line in text.split("\n"):
        if line.count(".") > MAX_DEPTH and not line.lstrip().startswith("#"):
            raise PolicyError("document", f"has at most {MAX_DEPTH} dots in a line", "Break it")


def _yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        _check(yaml.scan(text))
        _check_twice(yaml.compose(text, yaml.SafeLoader))
        found = yaml.safe_load(text)
    except PolicyError:  # a ValueError, and says what is wrong
        raise
    except yaml.YAMLError as error:
        raise PolicyError("document", "is YAML", " ".join(str(error).split())[:200]) from None
    except (ValueError, ArithmeticError, RecursionError):
        raise PolicyError("document", "is YAML that can be read", "Keep it simple") from None
    if not isinstance(found, dict):
        raise PolicyError("document", "is a table of settings", "Write name: value")
    return {str(name): value for name, value in found.items()}


def _check(tokens: Iterable[Token]) -> None:
    """Refuse what costs more to read than its length tells, before it is read on."""
    import yaml

    begins = (
        yaml.FlowSequenceStartToken,
        yaml.FlowMappingStartToken,
        yaml.BlockSequenceStartToken,
        yaml.BlockMappingStartToken,
    )
    ends = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for token in tokens:
        if isinstance(token, yaml.AliasToken):
            raise PolicyError("document", "holds no aliases", "Write the values out")
        depth += isinstance(token, begins) - isinstance(token, ends)
        if depth > MAX_DEPTH:
            raise _too_deep()


def _check_twice(node: Node | None) -> None:
    """Refuse a name that stands twice in one table: YAML forbids it, and the reader takes the last
    one without a word."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            _check_twice(entry)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set[str]()
    for name, entry in node.value:
        text = str(name.value)
        if text in seen:
            line = name.start_mark.line + 1
            raise PolicyError(
                "document", f"names {text[:60]!r} once in a table (line {line})", "Leave one out"
            )
        seen.add(text)
        _check_twice(entry)


def _too_deep() -> PolicyError:
    return PolicyError("document", f"is nested at most {MAX_DEPTH} deep", "Keep it simple")
