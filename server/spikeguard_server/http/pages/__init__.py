"""The server's HTML pages, without scripts: sign in, inbox, incident, decide; and the API page.

Law: approving never depends on the dashboard. GET shows, POST acts; everything that comes from
outside is escaped; a form works only from the page it was made for.
"""

from spikeguard_server.http.pages.render import (
    EvidenceView,
    HtmlPage,
    InboxView,
    IncidentView,
    act_page,
    confirm_page,
    inbox_page,
    incident_page,
    login_page,
    refusal_page,
    sign_in_page,
    style,
)

__all__ = [
    "EvidenceView",
    "HtmlPage",
    "InboxView",
    "IncidentView",
    "act_page",
    "confirm_page",
    "inbox_page",
    "incident_page",
    "login_page",
    "refusal_page",
    "sign_in_page",
    "style",
]
