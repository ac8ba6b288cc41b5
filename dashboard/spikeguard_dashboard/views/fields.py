"""Fields of a form: each with unit, default and range, and what the server refused beside it.

Invariants: what was typed stays until it was saved; the server alone judges it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from spikeguard_client import ApiError, PolicySetting
from spikeguard_dashboard import markup, words


@dataclass(frozen=True, slots=True)
class Refused:
    """What the server said of a form, and of which field."""

    field: str | None
    message: str
    remedy: str

    @property
    def text(self) -> str:
        """As it is read."""
        return f"{self.message.rstrip('.')}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Form:
    """One form; `name` begins the keys of what it keeps between two looks."""

    name: str

    def key(self, field: str) -> str:
        """Of the field's widget."""
        return f"{self.name} {field}"

    def send(self, act: Callable[[], object], done: str) -> bool:
        """Do it, and keep what is to be said of it for when the form is drawn again."""
        try:
            act()
        except ApiError as error:
            field = error.error.get("field")
            named = str(field) if field else None
            st.session_state[self._said] = Refused(named, error.message, error.remedy)
            return False
        st.session_state[self._said] = done
        return True

    def refuse(self, field: str | None, message: str, remedy: str) -> None:
        """The form itself cannot be sent."""
        st.session_state[self._said] = Refused(field, message, remedy)

    def say(self, *fields: str) -> None:
        """What became of the newest press; of what was said at one of `fields` where to look."""
        said = st.session_state.get(self._said)
        if isinstance(said, str):
            st.html(markup.block(markup.card("good", markup.paragraph(said, "order"))))
            del st.session_state[self._said]
        elif isinstance(said, Refused):
            above = any(map(said_of(said), fields))
            text = f"Refused: look at {said.field} above." if above else said.text
            st.html(markup.block(markup.card("warn", markup.paragraph(text, "order"))))

    def refused(self, *fields: str) -> bool:
        """Whether the server refused what was typed in one of `fields`."""
        said = st.session_state.get(self._said)
        return isinstance(said, Refused) and any(map(said_of(said), fields))

    def mark(self, field: str) -> None:
        """Below a field: what the server refused in it."""
        said = st.session_state.get(self._said)
        if isinstance(said, Refused) and said_of(said)(field):
            wrong(said.text)

    @property
    def _said(self) -> str:
        return f"{self.name} said"


def wrong(text: str) -> None:
    """What is wrong with the field above; as text, whatever is in it."""
    st.html(markup.block(markup.card("bad", markup.paragraph(text))))


def said_of(refused: Refused) -> Callable[[str], bool]:
    """Whether a refusal is about a field, or about a part of what it holds."""

    def about(field: str) -> bool:
        told = refused.field or ""
        return told == field or told.startswith((f"{field}.", f"{field}["))

    return about


def setting_field(form: Form, path: str, one: PolicySetting, value: Any, source: str) -> Any:
    """A field for a setting as it stands; returns what is typed, as the API takes it. `path` is its
    name in errors."""
    label, key = f"{one['name']}{_unit(one)}", form.key(path)
    st.session_state.setdefault(key, _typed(one, value))
    match one["type"]:
        case "yes_no":
            st.toggle(label, key=key)
        case "word":
            st.selectbox(label, one["words"], key=key)
        case "whole":
            st.number_input(label, key=key, step=1, placeholder="not set")
        case "number":
            st.number_input(label, key=key, step=None, format="%g")
        case "table":
            st.text_area(label, key=key, height=68)
        case _:
            st.text_input(label, key=key)
    st.caption(f"{one['meaning']} · {facts(one)} · {source}")
    form.mark(path)
    return _read(path, one, st.session_state[key])


def _unit(one: PolicySetting) -> str:
    return f", {one['unit']}" if one["unit"] else ""


def facts(one: PolicySetting) -> str:
    """Default and range, as the reference has them."""
    default = one["default"]
    shown = "none" if default is None else json.dumps(default).strip('"')
    if isinstance(default, int | float) and not isinstance(default, bool):
        shown = _number(default)
    if isinstance(default, list | dict):
        shown = words.shortened(shown, 24)
    if one["least"] is None or one["most"] is None:
        return f"default {shown}"
    return f"default {shown}, {_number(one['least'])} to {_number(one['most'])}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _typed(one: PolicySetting, value: Any) -> Any:
    """A value as its widget holds it."""
    if one["type"] == "table":
        return "" if value in (None, {}, []) else json.dumps(value, ensure_ascii=False)
    if one["type"] == "number":
        return None if value is None else float(value)
    return "" if value is None and one["type"] == "text" else value


def _read(path: str, one: PolicySetting, typed: Any) -> Any:
    """What is sent; text that is no JSON is said at its field, and sent as it stands."""
    if one["type"] != "table":
        return typed
    if not typed.strip():
        return {} if isinstance(one["default"], dict) else [] if one["default"] == [] else None
    try:
        return json.loads(typed)
    except ValueError:
        wrong(f"{path} is no JSON. Write it like its default: {json.dumps(one['default'])}")
        return typed


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `after` that are not as they were."""
    return {name: value for name, value in after.items() if not _same(before.get(name), value)}


def _same(one: Any, other: Any) -> bool:
    empty: tuple[Any, ...] = (None, {}, [])
    return one == other or (one in empty and other in empty)
