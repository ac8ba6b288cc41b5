"""The post-mortem: to read here, and to take along."""

from __future__ import annotations

import re

import streamlit as st

from spikeguard_client import IncidentDetail
from spikeguard_dashboard import markup
from spikeguard_dashboard.client import Document
from spikeguard_dashboard.views.frame import staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

FORMATS = {"html": "HTML, to print", "md": "Markdown", "json": "JSON"}
_PICTURE = re.compile(r"!\[[^\]]*\](\(\s*data:[^)]*\)|\[[a-z]+\]\n\n\*[^\n]*\*)")
_PICTURE_DATA = re.compile(r"^\[[a-z]+\]: data:.*$", re.MULTILINE)


def postmortem(visit: Visit, run: RunId, incident: IncidentDetail) -> None:
    """Shown once the incident is closed; until then said when it will be."""
    st.html(markup.block(markup.section("Post-mortem")))
    if not incident["has_postmortem"]:
        text = "It is written when the incident closes."
        st.html(markup.block(markup.paragraph(markup.soft(text))))
        return
    key = f"{run}#{incident['number']} {incident['closed_at']}"
    held_key, held = st.session_state.get("postmortem", ("", {}))
    if held_key != key:
        documents = look(f"postmortem {key}", lambda: _all_formats(visit, run, incident["number"]))
        if documents.data is None:
            staleness(documents)
            return
        held = documents.data
        st.session_state["postmortem"] = (key, held)
    _downloads(held, f"{run.name}-incident-{incident['number']}")
    read_here = st.expander("Read it here", expanded=incident["state"] == "closed")
    with read_here, st.container(key="postmortem"):  # named for the style of its tables
        st.markdown(readable(held["md"].content.decode(errors="replace")))


def _all_formats(visit: Visit, run: RunId, number: int) -> dict[str, Document]:
    return {format: visit.client.postmortem(visit.token, run, number, format) for format in FORMATS}


def _downloads(documents: dict[str, Document], name: str) -> None:
    with st.container(horizontal=True):
        for format, title in FORMATS.items():
            document = documents[format]
            st.download_button(
                title,
                document.content,
                file_name=f"postmortem-{name}.{format}",
                mime=document.media_type,
                key=f"download {format}",
                on_click="ignore",
            )


def readable(markdown: str) -> str:
    """The document without pictures that lie inside it: the curves above show the same."""
    return _PICTURE_DATA.sub("", _PICTURE.sub("", markdown))
