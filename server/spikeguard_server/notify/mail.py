"""A message as the HTML of a mail: five lines, what to press, the curve, then the rest.

Invariants: every value is escaped by the one function that writes text as HTML; no script, nothing
that is fetched: the picture travels with the mail.
"""

from __future__ import annotations

from spikeguard_protocol.escaping import html_text
from spikeguard_server.notify.apprise import PICTURE
from spikeguard_server.notify.facts import LABEL
from spikeguard_server.notify.message import ChannelMessage, brief
from spikeguard_server.notify.picture import incident_png

_PAGE = "font:16px/1.5 -apple-system,'Segoe UI',Roboto,sans-serif;max-width:40em;margin:0 auto"
_CURVE = "width:100%;max-width:34em;height:auto"
_BUTTON = (
    "display:inline-block;padding:12px 20px;margin:0 8px 8px 0;border-radius:8px;"
    "text-decoration:none;font-weight:600"
)
_FILLED = "background:#1d5fd1;color:#ffffff;border:1px solid #1d5fd1"
_PLAIN = "background:#ffffff;color:#1d5fd1;border:1px solid #9bb3dd"
_VERBS = (  # place on the page that decides, label, style
    ("approve", "Approve", _FILLED),
    ("reject", "Reject", _PLAIN),
    ("snooze", "Snooze 15 min", _PLAIN),
)


def mail_picture(message: ChannelMessage) -> bytes:
    """The curve as PNG; empty where there is none. A mail without it is better than none."""
    return b"" if message.picture is None else incident_png(message.picture)


def mail_html(message: ChannelMessage, *, drawn: bool = False) -> str:
    """The mail of `message`, whose title is its subject; `drawn`: with its picture."""
    first, *rest = message.lines()
    links, five = dict(message.links), len(brief(message.spike)) - 1 if message.spike else 0
    parts = [f"<p><b>{html_text(first)}</b></p>"]
    parts += [f"<p>{html_text(line)}</p>" for line in rest[:five]]
    page, link = links.pop("Decide", None), links.pop(LABEL, None)
    parts += _ways_to_decide(page, link, links.pop("Open", None) if page else None)
    parts += [f'<p><img src="cid:{PICTURE}" alt="The curve" style="{_CURVE}"></p>'] * drawn
    parts += [f"<p>{html_text(line)}</p>" for line in rest[five:]]
    parts += [
        f'<p><a href="{html_text(url)}">{html_text(name)}</a></p>' for name, url in links.items()
    ]
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def _ways_to_decide(page: str | None, link: str | None, first_view: str | None) -> list[str]:
    """A button for each verb, which leads to its form: opening a page decides nothing. With a
    `link` that needs no signing in they lead there, and it is said."""
    if page is None:
        return []
    verbs = "".join(_button(f"{link or page}#{place}", *verb) for place, *verb in _VERBS)
    verbs += _button(first_view, "Open", _PLAIN) if first_view else ""
    if link is None:
        return [f"<p>{verbs}</p>", "<p>They lead to a page; nothing is done before you press.</p>"]
    other = f'<a href="{html_text(page)}">sign in and decide</a>'
    return [
        f"<p>{verbs}</p>",
        "<p>The buttons open a page where you can decide on this proposal once, without signing "
        f"in. Nothing is done until you press a button there. Or {other}.</p>",
    ]


def _button(address: str, label: str, style: str) -> str:
    target = html_text(address)
    return f'<a style="{_BUTTON};{style}" href="{target}">{html_text(label)}</a>'
