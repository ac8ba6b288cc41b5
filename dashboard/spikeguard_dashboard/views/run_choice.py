"""What is done with the runs that were ticked, or with all that match: compare, tag, take away.

Law: tags change as the person who signed in, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlencode

import streamlit as st

from spikeguard_client import ApiError
from spikeguard_dashboard import markup
from spikeguard_dashboard.views.run_filters import Asked
from spikeguard_dashboard.visit import Person, Visit
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path

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


def chosen_actions(visit: Visit, asked: Asked) -> None:
    """Below the table."""
    st.fragment(_compared, run_every=1.0)()
    _files(visit, asked)
    if visit.person is not None and visit.person.may_decide:
        _tag_form(visit, visit.person)


def _compared() -> None:
    runs = chosen_runs()
    if len(runs) < 2:
        return
    names = ", ".join(run.removeprefix("default/") for run in runs[:MOST_COMPARED])
    link = markup.link(markup.Html("<b>Compare</b>"), compare_address(runs[:MOST_COMPARED]))
    more = f" ({MOST_COMPARED} at most)" if len(runs) > MOST_COMPARED else ""
    st.html(markup.block(markup.card("ask", markup.joined(link, names + more))))


def _files(visit: Visit, asked: Asked) -> None:
    """All that match, whatever page is shown; asked for when the button is pressed."""
    with st.container(horizontal=True, key="run-files"):
        for word, media in (("csv", "text/csv"), ("json", "application/json")):
            st.download_button(
                f"All that match, {word.upper()}",
                data=_download(visit, asked, word),
                file_name=f"runs.{word}",
                mime=media,
                on_click="ignore",
                key=f"runs {word}",
            )


def _download(visit: Visit, asked: Asked, word: str) -> Callable[[], bytes]:
    def load() -> bytes:
        return visit.client.download("/v1/runs/export", visit.token, format=word, **asked.filters)

    return load


def _tag_form(visit: Visit, person: Person) -> None:
    with st.expander("Tags of the runs that are ticked"), st.form("tags", border=False):
        add = st.multiselect(
            "Add", [], accept_new_options=True, placeholder="type a tag", key="tags add"
        )
        remove = st.multiselect(
            "Remove", [], accept_new_options=True, placeholder="type a tag", key="tags remove"
        )
        sent = st.form_submit_button("Change tags")
    if sent:
        _say(_change(visit, person, list(add), list(remove)))


def _change(visit: Visit, person: Person, add: list[str], remove: list[str]) -> tuple[str, str]:
    runs = chosen_runs()
    if not runs or not (add or remove):
        return "warn", "Nothing was changed: tick runs in the table, and type a tag."
    for at, name in enumerate(runs):
        run = RunId.parse(name)
        try:
            body = {"add": add, "remove": remove}
            visit.client.change("POST", f"{run_path(run)}/tags", person.signer, body)
        except ApiError as error:
            done = f" {at} of {len(runs)} runs were changed before." if at else ""
            return "warn", f"{run}: {error.message}. {error.remedy}.{done}"
    return "good", f"Tags of {len(runs)} run{'s' * (len(runs) != 1)} were changed."


def _say(found: tuple[str, str]) -> None:
    tone, text = found
    st.html(markup.block(markup.card(tone, markup.paragraph(text, "order"))))
