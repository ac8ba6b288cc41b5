"""The post-mortem: to read here, and to take along."""

from __future__ import annotations

import re

import streamlit as st

from spikeguard_client.shapes import IncidentDetail
from spikeguard_dashboard import markup
from spikeguard_dashboard.views.frame import staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import IncidentId, RunId

FORMATS = {  # as people and browsers call them
    "html": ("HTML, to print", "text/html"),
    "md": ("Markdown", "text/markdown"),
    "json": ("JSON", "application/json"),
}
_PICTURE = re.compile(r"!\[[^\]]*\](\(\s*data:[^)]*\)|\[[a-z]+\]\n\n\*[^\n]*\*)")
_PICTURE_DATA = re.compile(r"^\[[a-z]+\]: data:.*$", re.MULTILINE)


def postmortem(visit: Visit, run: RunId, incident: IncidentDetail) -> None:
    """Shown once the incident is closed; until then said when it will be."""
    st.html(markup.block(markup.section("Post-mortem")))
    if not incident["has_postmortem"]:
        text = "It is written when the incident closes."
        st.html(markup.block(markup.paragraph(markup.soft(text))))
        return
    id = IncidentId(run, incident["number"])
    key = f"{id} {incident['closed_at']}"
    held_key, held = st.session_state.get("postmortem", ("", {}))
    if held_key != key:
        documents = look(f"postmortem {key}", lambda: _all_formats(visit, id))
        if documents.data is None:
            staleness(documents)
            return
        held = documents.data
        st.session_state["postmortem"] = (key, held)
    _downloads(held, f"{run.name}-incident-{incident['number']}")
    read_here = st.expander("Read it here", expanded=incident["state"] == "closed")
    with read_here, st.container(key="postmortem"):  # named for the style of its tables
        st.markdown(readable(held["md"].decode(errors="replace")))


def _all_formats(visit: Visit, incident: IncidentId) -> dict[str, bytes]:
    return {format: visit.client.postmortem(incident, format) for format in FORMATS}


def _downloads(documents: dict[str, bytes], name: str) -> None:
    with st.container(horizontal=True):
        for format, (title, media_type) in FORMATS.items():
            st.download_button(
                title,
                documents[format],
                file_name=f"postmortem-{name}.{format}",
                mime=media_type,
                key=f"download {format}",
                on_click="ignore",
            )


def readable(markdown: str) -> str:
    """The document without pictures that lie inside it: the curves above show the same."""
    return _PICTURE_DATA.sub("", _PICTURE.sub("", markdown))
