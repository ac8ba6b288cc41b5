"""The runs that are ticked in the table, and the link that compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import streamlit as st

from spikeguard_dashboard import markup

MOST_COMPARED: Final = 6
_CHOSEN: Final = "runs chosen"


def chosen_runs() -> list[str]:
    """PROJECT/NAME of the runs that are ticked."""
    found: list[str] = st.session_state.get(_CHOSEN, [])
    return found


def choose(runs: Sequence[str]) -> None:
    """These are ticked."""
    st.session_state[_CHOSEN] = list(runs)


def compare_address(runs: Sequence[str]) -> str:
    """Where these runs are compared."""
    return f"./compare?{urlencode([('run', run) for run in runs], safe='/')}"


def chosen_actions() -> None:
    """Below the table."""
    st.fragment(_compared, run_every=1.0)()


def _compared() -> None:
    runs = chosen_runs()
    if len(runs) < 2:
        return
    names = ", ".join(run.removeprefix("default/") for run in runs[:MOST_COMPARED])
    link = markup.link(markup.Html("<b>Compare</b>"), compare_address(runs[:MOST_COMPARED]))
    more = f" ({MOST_COMPARED} at most)" if len(runs) > MOST_COMPARED else ""
    st.html(markup.block(markup.card("ask", markup.joined(link, names + more))))
