"""The few pages that the server shows itself: log in, and decide, without scripts; and its calls.

Law: approving never depends on the dashboard. GET shows, POST acts; everything that comes from
outside is escaped; a form works only from the page it was made for.
"""

from spikeguard_server.http.pages.render import (
    HtmlPage,
    IncidentView,
    confirm_page,
    docs_page,
    docs_script,
    incident_page,
    login_page,
    refusal_page,
    sign_in_page,
    style,
)

__all__ = [
    "HtmlPage",
    "IncidentView",
    "confirm_page",
    "docs_page",
    "docs_script",
    "incident_page",
    "login_page",
    "refusal_page",
    "sign_in_page",
    "style",
]
