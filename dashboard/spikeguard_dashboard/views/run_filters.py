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
ADDRESS: Final = "query-params"  # each field stands in the address under its key


@dataclass(frozen=True, slots=True)
class Asked:
    """What the server is asked for."""

    query: Mapping[str, Any]
    cursor: str | None
    number: int  # of the page, from 1


def asked_runs() -> Asked:
    """Draw the filters and read them."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="run-filters"):
        search = st.text_input(
            "Search", key="search", bind=ADDRESS, placeholder="part of PROJECT/NAME", max_chars=100,
            width=240,
        )  # fmt: skip
        sort, descending = SORTS[
            st.selectbox("Sort by", list(SORTS), key="sort", bind=ADDRESS, width=200)
        ]
        with st.popover("Filters"):
            told = _filters()
    if filtered := [words.plain(name) for name, value in told.items() if value]:
        st.caption(f"Filtered by {', '.join(filtered)}")  # they are folded away
    told["search"] = search.strip()
    asked = {name: value for name, value in told.items() if value}
    asked |= {"sort": sort, "descending": "true" if descending else "false", "limit": PAGE}
    state = st.session_state
    if state.get("runs asked") != asked:  # another list begins with its first page
        state["runs asked"], state["runs cursors"] = asked, []
    cursors: list[str] = state["runs cursors"]
    return Asked(asked, cursors[-1] if cursors else None, len(cursors) + 1)


def _filters() -> dict[str, Any]:
    kinds = [ANY, *(kind.value for kind in Kind)]
    project = st.text_input("Project", key="project", bind=ADDRESS, placeholder="every one")
    return {
        "project": project.strip(),
        "state": st.selectbox(
            "State", STATES, key="state", bind=ADDRESS, index=None, placeholder="any"
        ),
        "open_kind": st.selectbox(
            "Open incident", kinds, key="open_kind", bind=ADDRESS, index=None,
            placeholder="no matter", format_func=_kind,
        ),
        "tag": st.multiselect(
            "Tags, all of them", [], key="tag", bind=ADDRESS, accept_new_options=True,
            max_selections=5, placeholder="type a tag",
        ),
    }  # fmt: skip


def _kind(word: str) -> str:
    return "of any kind" if word == ANY else words.plain(word)


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
