"""Which runs are shown: search, filters, order and page, as the address of the page has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from spikeguard_dashboard import words
from spikeguard_protocol import Kind

PAGE: Final = 50  # runs
SORTS: Final[Mapping[str, tuple[str, bool]]] = {  # what people read -> what is asked, descending
    "what needs somebody": ("urgency", True),
    "newest first": ("created", True),
    "name": ("name", False),
    "last message": ("heard", True),
    "most steps": ("step", True),
    "lowest loss": ("loss", False),
    "highest loss": ("loss", True),
    "highest gradient norm": ("grad_norm", True),
    "fastest": ("tokens_per_second", True),
    "most incidents": ("incidents", True),
}
STATES: Final = ("live", "silent", "ended")
ANY: Final = "any"
_FIRST: Final = next(iter(SORTS))


@dataclass(frozen=True, slots=True)
class Asked:
    """What the server is asked for."""

    query: Mapping[str, Any]
    cursor: str | None
    number: int  # of the page, from 1

    @property
    def filters(self) -> dict[str, Any]:
        """The same without the size of a page, for a file of all that match."""
        return {name: value for name, value in self.query.items() if name != "limit"}


def asked_runs() -> Asked:
    """Draw the filters and read them."""
    _from_address()
    with st.container(horizontal=True, vertical_alignment="bottom", key="run-filters"):
        st.text_input(
            "Search", key="runs search", placeholder="part of PROJECT/NAME", max_chars=100,
            width=240,
        )  # fmt: skip
        st.selectbox("Sort by", list(SORTS), key="runs sort", width=200)
        with st.popover(_filters_word()):
            _filters()
    return _read()


def _filters_word() -> str:
    """How many are set, since they are folded away."""
    state = st.session_state
    names = ("project", "state", "open_kind", "tags", "archived")
    count = sum(bool(state[f"runs {name}"]) for name in names)
    return f"Filters ({count})" if count else "Filters"


def _filters() -> None:
    kinds = [ANY, *(kind.value for kind in Kind)]
    st.text_input("Project", key="runs project", placeholder="every one")
    st.selectbox("State", STATES, key="runs state", index=None, placeholder="any")
    st.selectbox(
        "Open incident", kinds, key="runs open_kind", index=None, placeholder="no matter",
        format_func=_kind,
    )  # fmt: skip
    st.multiselect(
        "Tags, all of them", [], key="runs tags", accept_new_options=True, max_selections=5,
        placeholder="type a tag",
    )  # fmt: skip
    st.toggle("Archived ones instead", key="runs archived")


def _kind(word: str) -> str:
    return "of any kind" if word == ANY else words.plain(word)


def _read() -> Asked:
    state = st.session_state
    sort, descending = SORTS[state["runs sort"]]
    told = {
        "search": state["runs search"].strip() or None,
        "project": state["runs project"].strip() or None,
        "state": state["runs state"],
        "open_kind": state["runs open_kind"],
        "tag": state["runs tags"] or None,
        "archived": "true" if state["runs archived"] else None,
    }
    _into_address(told, state["runs sort"])
    asked = {name: value for name, value in told.items() if value is not None}
    asked |= {"sort": sort, "descending": "true" if descending else "false", "limit": PAGE}
    if state.get("runs asked") != asked:  # another list begins with its first page
        state["runs asked"], state["runs cursors"] = asked, []
    cursors: list[str] = state["runs cursors"]
    return Asked(asked, cursors[-1] if cursors else None, len(cursors) + 1)


def _from_address() -> None:
    """On the first look; later the fields say what is asked."""
    state, given = st.session_state, st.query_params
    if "runs sort" in state:
        return
    state["runs search"], state["runs project"] = given.get("search", ""), given.get("project", "")
    state["runs state"] = given["state"] if given.get("state") in STATES else None
    kinds = (ANY, *(kind.value for kind in Kind))
    state["runs open_kind"] = given["open_kind"] if given.get("open_kind") in kinds else None
    state["runs tags"] = given.get_all("tag")[:5]
    state["runs sort"] = given["sort"] if given.get("sort") in SORTS else _FIRST
    state["runs archived"] = given.get("archived") == "true"


def _into_address(told: Mapping[str, Any], sort: str) -> None:
    wanted = {name: value for name, value in told.items() if value is not None}
    wanted |= {} if sort == _FIRST else {"sort": sort}
    if {name: st.query_params.get_all(name) for name in st.query_params} != {
        name: value if isinstance(value, list) else [value] for name, value in wanted.items()
    }:
        st.query_params.from_dict(wanted)


def turn_pages(asked: Asked, following: str | None, place: str) -> None:
    """Buttons to the pages beside this one; pressed, the whole page is drawn anew."""
    with st.container(horizontal=True, vertical_alignment="center", key="run-pages"):
        before = st.button("Previous", key="runs back", disabled=asked.cursor is None)
        after = st.button("Next", key="runs on", disabled=following is None)
        st.caption(f"Runs {place}")
    cursors: list[str] = st.session_state["runs cursors"]
    if before and cursors:
        cursors.pop()
    elif after and following is not None:
        cursors.append(following)
    if before or after:
        st.rerun()
