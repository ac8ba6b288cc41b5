"""Forms of a project's channels and silences.

Law: written as the person who signed in; the server checks what is saved, and names the field. What
is secret in a channel never comes here: a target that is left empty stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import streamlit as st

from spikeguard_client import Channel, Silence
from spikeguard_dashboard import words
from spikeguard_dashboard.views.fields import Form
from spikeguard_dashboard.visit import Person, Visit
from spikeguard_protocol import Kind
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_protocol.paths import channel_path, silence_path

TARGETS: Final[Mapping[str, Sequence[str]]] = {  # of each kind: what its target holds
    "webhook": ("url", "secret"),
    "pagerduty": ("routing_key", "url"),
    "apprise": ("url",),
}
SECRET: Final = ("secret", "routing_key", "api_key", "authorization")
ABOUT: Final = ("spikes", "decisions", "results", "runs")
NEW: Final = "a new one"
NAME_REMEDY: Final = "Write 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
FIELDS: Final = (
    *("name", "kind", "about", "kinds", "runs", "level", "cooldown_s", "links"),
    *("person", "enabled", "reason"),
    *(f"target.{name}" for fields in TARGETS.values() for name in fields),
)


def channel_form(visit: Visit, person: Person, project: str, channels: Sequence[Channel]) -> None:
    """Write a channel, or remove one; for admins."""
    by_name = {one["name"]: one for one in channels}
    which = st.selectbox("Channel", [NEW, *by_name], key="channel which")
    old = by_name.get(which)
    form = Form(f"channel {project}/{which}")
    name = which if old else _name(form)
    kind = _kind(form, old)
    with st.form(form.key("form"), border=False):
        wanted = {"kind": kind, **_target(form, kind, old), **_rules(form, old)}
        reason = st.text_input("Reason, for the record", key=form.key("reason"), max_chars=500)
        with st.container(horizontal=True):
            saved = st.form_submit_button("Save channel", type="primary")
            removed = old is not None and st.form_submit_button("Remove channel")
    form.say(*FIELDS)
    if saved or removed:
        path = channel_path(project, name) if NAME_PATTERN.fullmatch(name) else ""
        _act(visit, person, form, path, wanted, reason, remove=bool(removed))


def _name(form: Form) -> str:
    name: str = st.text_input("Name", key=form.key("name"), placeholder="oncall", max_chars=64)
    form.mark("name")
    return name.strip()


def _kind(form: Form, old: Channel | None) -> str:
    kinds = list(TARGETS)
    at = kinds.index(old["kind"]) if old and old["kind"] in kinds else 0
    kind: str = st.selectbox("Kind", kinds, index=at, key=form.key("kind"))
    form.mark("kind")
    return kind


def _target(form: Form, kind: str, old: Channel | None) -> dict[str, Any]:
    """What its target holds; nothing, where nothing is typed."""
    told: dict[str, str] = {}
    for field in TARGETS[kind]:
        hint = old["target"].get(field, "") if old else ""
        typed = st.text_input(
            "URL" if field == "url" else words.plain(field).capitalize(),
            key=form.key(f"target.{field}"),
            type="password" if field in SECRET else "default",
            placeholder=f"stays {hint}" if hint else "",
            help="Kept by the server and never shown again" if field in SECRET else None,
        )
        form.mark(f"target.{field}")
        if typed.strip():
            told[field] = typed.strip()
    return {"target": told} if told or old is None else {}


def _rules(form: Form, old: Channel | None) -> dict[str, Any]:
    rule: Mapping[str, Any] = old if old is not None else {}
    kinds = [kind.value for kind in Kind]
    about = st.multiselect(
        "Told about", ABOUT, default=_known(rule.get("about", ABOUT), ABOUT),
        key=form.key("about"),
    )  # fmt: skip
    form.mark("about")
    chosen = st.multiselect(
        "Incidents of kind", kinds, default=_known(rule.get("kinds", kinds), kinds),
        key=form.key("kinds"), format_func=words.plain,
    )  # fmt: skip
    form.mark("kinds")
    runs = st.text_input(
        "Runs, with commas; * ends a name; empty: every one",
        ", ".join(rule.get("runs", [])), key=form.key("runs"),
    )  # fmt: skip
    form.mark("runs")
    level = st.number_input(
        "Told from escalation, 0 (at once) to 5", value=int(rule.get("level", 0)), step=1,
        key=form.key("level"),
    )  # fmt: skip
    form.mark("level")
    cooldown = st.number_input(
        "Seconds between two messages of one incident, 0 to 86,400",
        value=float(rule.get("cooldown_s", 120.0)), step=None, format="%g",
        key=form.key("cooldown_s"),
    )  # fmt: skip
    form.mark("cooldown_s")
    links = st.toggle(
        "Messages carry a link by which whoever holds it may decide",
        value=bool(rule.get("links", False)), key=form.key("links"),
    )  # fmt: skip
    form.mark("links")
    whose = st.text_input(
        "Whose channel it is; who follows a link from it decides as them",
        rule.get("person") or "", key=form.key("person"),
    )  # fmt: skip
    form.mark("person")
    enabled = st.toggle(
        "Switched on", value=bool(rule.get("enabled", True)), key=form.key("enabled")
    )
    names = [part.strip() for part in runs.split(",") if part.strip()]
    return {
        "about": about, "kinds": chosen, "runs": names, "level": level, "cooldown_s": cooldown,
        "links": links, "person": whose.strip() or None, "enabled": enabled,
    }  # fmt: skip


def _known(values: Sequence[str], options: Sequence[str]) -> list[str]:
    return [value for value in values if value in options]


def _act(
    visit: Visit, person: Person, form: Form, path: str, wanted: Mapping[str, Any], reason: str,
    *, remove: bool,
) -> None:  # fmt: skip
    why = reason.strip()
    if not path:
        form.refuse("name", "A channel needs a name", NAME_REMEDY)
    elif remove:
        query = {"reason": why} if why else {}
        form.send(
            lambda: visit.client.change("DELETE", path, person.signer, query=query),
            "The channel was removed.",
        )
    else:
        body = {**wanted, **({"reason": why} if why else {})}
        form.send(
            lambda: visit.client.change("PUT", path, person.signer, body),
            "The channel was saved. Test it with its button above.",
        )
    st.rerun()


def silence_form(visit: Visit, person: Person, project: str, silences: Sequence[Silence]) -> None:
    """Silence something, or end a silence; for whoever decides."""
    form = Form(f"silence {project}")
    with st.form(form.key("form"), border=False):
        run = st.text_input("Run; empty: the whole project", key=form.key("run"))
        form.mark("run")
        incident = st.number_input(
            "Incident of that run; empty: all", value=None, step=1, key=form.key("incident")
        )
        form.mark("incident")
        begins = st.number_input("Begins in, minutes", value=0.0, key=form.key("begins_in_s"))
        form.mark("begins_in_s")
        lasts = st.number_input(
            "Lasts, minutes, up to 43,200 (30 days)", value=60.0, key=form.key("lasts_s")
        )
        form.mark("lasts_s")
        reason = st.text_input("Why", key=form.key("reason"), max_chars=500)
        form.mark("reason")
        sent = st.form_submit_button("Silence", type="primary")
    form.say("run", "incident", "begins_in_s", "lasts_s", "reason")
    if sent:
        body = {
            "project": project, "run": run.strip() or None, "incident": incident,
            "begins_in_s": begins * 60, "lasts_s": lasts * 60, "reason": reason.strip(),
        }  # fmt: skip
        form.send(
            lambda: visit.client.change("POST", "/v1/silences", person.signer, body),
            "Silenced. What is still true when it ends is told then.",
        )
        st.rerun()
    _end(visit, person, project, silences)


def _end(visit: Visit, person: Person, project: str, silences: Sequence[Silence]) -> None:
    form = Form(f"end silence {project}")
    with st.container(horizontal=True):
        for one in silences:
            number = one["number"]
            covers = one["run"] or "every run"
            if st.button(f"End silence {number} of {covers}", key=form.key(str(number))):
                path = silence_path(project, number)
                form.send(
                    partial(visit.client.change, "DELETE", path, person.signer),
                    f"Silence {number} has ended; what it held is told if it is still true.",
                )
                st.rerun()
    form.say()
