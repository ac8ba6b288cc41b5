"""What Streamlit runs: the pages and their addresses.

Thin; every page is a function of `views`. The pages lie there and not in a folder named `pages`,
which Streamlit would serve file by file before this script has run.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from spikeguard_dashboard.views.compare import compare_page
from spikeguard_dashboard.views.incident import incident_page
from spikeguard_dashboard.views.run import run_page
from spikeguard_dashboard.views.runs import runs_page

STYLE = Path(__file__).with_name("style.css")


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(layout="wide")  # each page has its own title
    st.html(STYLE)
    page = st.navigation(
        [
            st.Page(runs_page, title="Runs · spikeguard", default=True),
            st.Page(compare_page, title="Compare · spikeguard", url_path="compare"),
            st.Page(run_page, title="Run · spikeguard", url_path="run"),
            st.Page(incident_page, title="Incident · spikeguard", url_path="incident"),
        ],
        position="hidden",
    )
    page.run()


main()
