"""The table of runs: a real one, with columns that can be moved, sorted, searched and selected; and
the link that compares the runs that are ticked in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urljoin

import pandas as pd
import streamlit as st

from spikeguard_client.shapes import Run
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.visit import Visit
from spikeguard_protocol import RunId
from spikeguard_protocol.phrases import duration_phrase

ROW_PX, MOST_ROWS = 35, 20
COLUMNS: Final = (  # the first three are what a phone shows
    "Run", "Step", "Loss", "Needs", "State", "Grad norm", "Tokens/s", "Data age",
    "Incidents", "Tags", "Created",
)  # fmt: skip
MOST_COMPARED: Final = 6
_CHOSEN: Final = "runs chosen"


def draw_table(visit: Visit, runs: Sequence[Run], chosen: Sequence[str]) -> None:
    """One row a run; a press on a row's box chooses it. While some are chosen, rows that were shown
    keep their places, or a choice would move to another run."""
    rows = _placed(runs) if chosen else list(runs)
    st.session_state["runs shown"] = [_name(run) for run in rows]
    frame = pd.DataFrame([_row(run, visit.address) for run in rows], columns=list(COLUMNS))
    st.dataframe(
        frame,
        key="runs table",
        hide_index=True,
        width="stretch",
        height="content" if len(rows) <= MOST_ROWS else ROW_PX * (MOST_ROWS + 1),
        column_config=_config(),
        selection_mode="multi-row",
        on_select=lambda: _select(),
    )
    st.caption(
        f"Tick 2 to {MOST_COMPARED} runs to compare them. With the keyboard: arrows move, "
        "Space ticks, Enter opens a link."
    )


def _placed(runs: Sequence[Run]) -> list[Run]:
    """The runs at the places they had; new ones behind them."""
    place = {name: at for at, name in enumerate(st.session_state.get("runs shown", []))}
    return sorted(runs, key=lambda run: place.get(_name(run), len(place)))


def _select() -> None:
    shown: list[str] = st.session_state.get("runs shown", [])
    places: list[int] = st.session_state["runs table"]["selection"]["rows"]
    st.session_state[_CHOSEN] = [shown[at] for at in places if at < len(shown)]


def _name(run: Run) -> str:
    return f"{run['project']}/{run['name']}"


def _row(run: Run, address: str) -> tuple[Any, ...]:
    found = RunId(run["project"], run["name"])
    return (
        urljoin(address, markup.run_address(found)),
        run["last_step"],
        words.figure(run["last_loss"]),
        _needs(run),
        words.plain(run["state"]),
        words.figure(run["last_grad_norm"]),
        words.big(run["tokens_per_second"]),
        duration_phrase(run["age_s"]) if run["state"] != "ended" else words.NOTHING,
        run["incidents"],
        run["tags"],
        run["created_at"],
    )


def _needs(run: Run) -> str:
    if run["live_attempts"] > 1:
        return f"{run['live_attempts']} attempts alive"
    if run["open_incident"] is None:
        return "a decision on an order" if run["waiting_approval"] else ""
    kind = words.plain(run["open_kind"]) if run["open_kind"] else "open"
    waiting = ", a decision" if run["waiting_approval"] else ""
    return f"#{run['open_incident']} {kind}{waiting}"


def _config() -> Mapping[str, Any]:
    column = st.column_config
    return {
        "Run": column.LinkColumn(display_text=r"run=(?:default/)?(.+)$", pinned=True),
        "Needs": column.TextColumn(
            width="medium", help="Its open incident, and whether a decision waits"
        ),
        "State": column.TextColumn(width="small"),
        "Step": column.NumberColumn(format="localized", width="small"),
        "Loss": column.TextColumn(help="Newest, nats per token", alignment="right", width="small"),
        "Grad norm": column.TextColumn(help="Newest, L2 before clipping", alignment="right"),
        "Tokens/s": column.TextColumn(alignment="right"),
        "Data age": column.TextColumn(help="Since the last message"),
        "Incidents": column.NumberColumn(help="Opened so far"),
        "Tags": column.ListColumn(),
        "Created": column.DatetimeColumn("Created, UTC", format="D MMM, HH:mm", timezone="UTC"),
    }


def chosen_runs() -> list[str]:
    """PROJECT/NAME of the runs that are ticked."""
    found: list[str] = st.session_state.get(_CHOSEN, [])
    return found


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
