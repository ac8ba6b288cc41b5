"""Policy and detection of a run or a project: every setting.

Law: saved as the person who signed in, and the server checks what is saved. Nothing here is
refreshed by itself: what was typed stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from spikeguard_client import Policy, PolicySettings
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Content
from spikeguard_dashboard.views.fields import Form, changed, setting_field
from spikeguard_dashboard.views.frame import asked_run, framed, staleness
from spikeguard_dashboard.visit import Person, Visit, look
from spikeguard_protocol import DEFAULT_PROJECT, RunId
from spikeguard_protocol.paths import run_path

COLUMNS: Final = 3
DETECTOR: Final = "robust_trend"  # where a policy names none


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whose policy it is."""

    project: str
    run: RunId | None  # None: the project's own

    @property
    def path(self) -> str:
        return "/v1/policy" if self.run is None else f"{run_path(self.run)}/policy"

    @property
    def title(self) -> str:
        return f"Policy of {f'project {self.project}' if self.run is None else self.run}"


def policy_page() -> None:
    """`/policy?run=project/name`, or `/policy?project=name`."""
    run = asked_run()
    framed(_page, ["Policy" if run is None else f"Policy of {run}"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    run = asked_run()
    project = st.query_params.get("project") or DEFAULT_PROJECT
    subject = _Subject(run.project if run else project, run)
    known = look("policy settings", lambda: _known(visit))
    found = look(f"policy {subject.title}", lambda: _in_force(visit, subject))
    staleness(known, found)
    if known.data is None or found.data is None:
        return
    st.html(markup.block(markup.heading(subject.title), *_about(subject, found.data, visit)))
    _saved_notice()
    form = Form(f"policy {subject.title} {found.data['scope']} {found.data['version']}")
    wanted = _fields(form, known.data, found.data)
    _finish(visit, subject, form, found.data, wanted)


def _known(visit: Visit) -> PolicySettings:
    return visit.client.ask(PolicySettings, "/v1/policy/settings", visit.token)


def _in_force(visit: Visit, subject: _Subject) -> Policy:
    query = {"project": subject.project} if subject.run is None else {}
    return visit.client.ask(Policy, subject.path, visit.token, **query)


def _about(subject: _Subject, policy: Policy, visit: Visit) -> list[Content]:
    """Whose policy is in force, since when, and where the other one is."""
    author = policy["created_by"]
    since = f", by {author}, {words.clock(policy['created_at'], visit.zone)}" if author else ""
    version = f"Version {policy['version']}{since}" if author else "As spikeguard comes"
    said: list[Content] = []
    if subject.run is not None:
        address = f"./policy?project={subject.project}"
        whose = markup.link(f"project {subject.project}", address)
        own = policy["scope"] == "run"
        text = "the run's own; later changes of" if own else "in force here is that of"
        tail = "no longer reach it" if own else "until the run has its own"
        said = [markup.joined(f"{version}: {text}", whose, tail)]
    else:
        said = [f"{version}. Runs without a policy of their own follow it."]
    if policy["policy"].get("halted"):
        said.append(markup.chip("halted", "kill switch is on"))
    return [markup.paragraph(markup.joined(*said))]


def _fields(form: Form, known: PolicySettings, policy: Policy) -> dict[str, Any]:
    """Every setting, as it is typed now."""
    plain = policy["policy"]
    source = _source(policy)
    plain_ones = [one for one in known["policy"] if one["type"] != "table"]
    with st.expander(f"When to act, and how ({len(plain_ones)} settings)", expanded=True):
        typed = _grid(form, "", plain_ones, plain, source)
    with st.expander("Who approves, by verb", expanded=form.refused("approval")):
        typed["approval"] = _approvals(form, known, plain.get("approval", {}), source)
    with st.expander("Detection", expanded=True):
        typed["detection"] = _detection(form, known, plain.get("detection", {}), source)
    tables = [one for one in known["policy"] if one["type"] == "table"]
    refused = form.refused(*(one["name"] for one in tables))
    with st.expander("Rules, remedies, escalation, quiet hours (JSON)", expanded=refused):
        typed |= {
            one["name"]: setting_field(form, one["name"], one, plain.get(one["name"]), source)
            for one in tables
        }
    return typed


def _source(policy: Policy) -> str:
    if policy["scope"] == "run":
        return "now: the run's own"
    return "now: the project's" if policy["created_by"] else "now: the default"


def _grid(
    form: Form, prefix: str, settings: Sequence[Any], values: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Fields side by side, in rows, so that a phone shows them in the same order."""
    typed: dict[str, Any] = {}
    for first in range(0, len(settings), COLUMNS):
        for place, one in zip(st.columns(COLUMNS), settings[first : first + COLUMNS], strict=False):
            with place:
                value = values.get(one["name"], one["default"])
                path = f"{prefix}{one['name']}"
                typed[one["name"]] = setting_field(form, path, one, value, source)
    return typed


def _approvals(
    form: Form, known: PolicySettings, now: Mapping[str, Any], source: str
) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for verb in known["verbs"]:
        st.markdown(f"**{words.plain(verb)}**")
        prefix = f"approval.{verb}."
        typed[verb] = _grid(form, prefix, known["approval"], now.get(verb, {}), source)
    return typed


def _detection(
    form: Form, known: PolicySettings, now: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The detector and what differs from its defaults; thresholds of single signals stay."""
    by_name = {one["name"]: one for one in known["detectors"]}
    key = form.key("detection.detector")
    st.session_state.setdefault(key, now.get("detector", DETECTOR))
    name: str = st.selectbox("Detector", list(by_name), key=key)
    form.mark("detection.detector")
    st.caption(f"{by_name[name]['meaning']} · {source}")
    same = name == now.get("detector", DETECTOR)
    values = now if same else {}
    settings = by_name[name]["settings"]
    typed = _grid(form, "detection.", settings, values, source)
    usual = {one["name"]: one["default"] for one in settings}
    found = {one: typed[one] for one in typed if one in now or typed[one] != usual[one]}
    found |= {"signals": now["signals"]} if "signals" in now else {}
    form.mark("detection.signals")
    return found if name == DETECTOR and "detector" not in now else {"detector": name, **found}


def _finish(
    visit: Visit, subject: _Subject, form: Form, policy: Policy, wanted: Mapping[str, Any]
) -> None:
    """What differs, and the way to save it."""
    edits = changed(policy["policy"], wanted)
    names = ", ".join(edits) or "nothing yet"
    st.html(markup.block(markup.paragraph(markup.soft(f"Changed here: {names}."))))
    form.say(*_marked(wanted))
    if visit.person is None or visit.person.role != "admin":
        text = "An admin who signed in saves changes."
        st.html(markup.block(markup.paragraph(markup.soft(text))))
        return
    _save(visit, visit.person, subject, form, policy, edits)


def _marked(wanted: Mapping[str, Any]) -> list[str]:
    """Fields beside which an error is said."""
    inner = [f"approval.{verb}" for verb in wanted["approval"]]
    return [*(name for name in wanted if name not in ("approval", "detection")), *inner,
            *(f"detection.{name}" for name in wanted["detection"])]  # fmt: skip


def _save(
    visit: Visit, person: Person, subject: _Subject, form: Form, policy: Policy,
    edits: Mapping[str, Any],
) -> None:  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom"):
        reason = st.text_input("Reason, for the record", key=form.key("reason"), max_chars=500)
        pressed = st.button("Save", type="primary", key=form.key("save"), disabled=not edits)
    if not pressed:
        return
    own = policy["version"] if policy["scope"] == "run" else 0
    whole = subject.run is None or policy["scope"] == "run"
    body: dict[str, Any] = {
        "policy": {**policy["policy"], **edits} if whole else dict(edits),
        "version": policy["version"] if subject.run is None else own,
    }
    body |= {"project": subject.project} if subject.run is None else {}
    body |= {"reason": reason.strip()} if reason.strip() else {}
    sent = form.send(lambda: visit.client.change("PUT", subject.path, person.signer, body), "")
    if sent:
        st.session_state["policy saved"] = f"{subject.title} was saved."
    st.rerun()


def _saved_notice() -> None:
    """What was saved by the press before."""
    if text := st.session_state.pop("policy saved", None):
        said = markup.paragraph(f"{text} It counts from each run's next message.", "order")
        st.html(markup.block(markup.card("good", said)))
