"""What is wrong with a field of a request: the field, its limit and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.errors import ServiceError, Unprocessable

SCHEMA: Final = "/openapi.json says what this call takes"
NAME_REMEDY: Final = "Write 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
_LIMITS: Final[Mapping[str, tuple[str, str, str]]] = {  # type -> its bound, what is wrong, remedy
    "less_than_equal": ("le", "is more than", "Write at most"),
    "less_than": ("lt", "is not less than", "Write less than"),
    "greater_than_equal": ("ge", "is less than", "Write at least"),
    "greater_than": ("gt", "is not more than", "Write more than"),
}
_KINDS: Final[Mapping[str, tuple[str, str]]] = {  # type -> what is wrong, remedy
    "missing": ("is missing", SCHEMA),
    "extra_forbidden": ("is nothing that this call takes", "Leave it out, or correct its name"),
    "string_too_short": ("is empty or too short", "Write more"),
    "int_parsing": ("is no whole number", "Write digits alone"),
    "int_type": ("is no whole number", "Write digits without quotation marks"),
    "model_attributes_type": ("is no JSON object", "Write {...}"),
    "list_type": ("is no list", "Write [...]"),
    "string_type": ("is no text", "Write it in quotation marks"),
    "bool_type": ("is neither true nor false", "Write one, without quotation marks"),
    "bool_parsing": ("is neither true nor false", "Write one"),
    "finite_number": ("is not finite", "Write a finite number"),
    "too_short": ("holds too few values", SCHEMA),
    "too_long": ("holds too many values", SCHEMA),
    "float_parsing": ("is no number", "Write a number, as 0.5"),
    "float_type": ("is no number", "Write a number without quotation marks"),
}


def invalid(field: str, found: Mapping[str, Any]) -> ServiceError:
    """The answer to `found`, as the framework has it, in `field`."""
    kind, about = str(found["type"]), found.get("ctx", {})
    if kind in _LIMITS:
        name, wrong, remedy = _LIMITS[kind]
        limit = _number(about[name])
        return Unprocessable(f"{field} {wrong} {limit}", f"{remedy} {limit}", field=field)
    if kind == "string_pattern_mismatch":
        return _not_of_form(field, str(about["pattern"]))
    if kind == "string_too_long":
        most = f"{about['max_length']:,} characters"
        return Unprocessable(f"{field} is longer than {most}", f"Write at most {most}", field=field)
    if kind in ("enum", "literal_error"):
        return Unprocessable(f"{field} is one of {about['expected']}", "Write one", field=field)
    if kind in _KINDS:
        wrong, remedy = _KINDS[kind]
        return Unprocessable(f"{field} {wrong}", remedy, field=field)
    said = str(found["msg"]).removeprefix("Value error, ")
    return Unprocessable(f"{field}: {said}", SCHEMA, field=field)


def _not_of_form(field: str, pattern: str) -> ServiceError:
    if pattern == f"^{NAME_PATTERN.pattern}$":
        return Unprocessable(f"{field} is not a name", NAME_REMEDY, field=field)
    return Unprocessable(f"{field} does not match {pattern}", SCHEMA, field=field)


def _number(limit: Any) -> str:
    whole = isinstance(limit, float) and limit.is_integer()
    return f"{int(limit) if whole else limit:,}" if isinstance(limit, int | float) else str(limit)
