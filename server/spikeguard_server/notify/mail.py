"""A message as the HTML of a mail: five lines, what to press, the curve, then the rest.

Invariants: every value is escaped by the one function that writes text as HTML; no script, nothing
that is fetched: the picture travels with the mail.
"""

from __future__ import annotations

from spikeguard_protocol.escaping import html_text
from spikeguard_server.notify.apprise import PICTURE
from spikeguard_server.notify.links import LABEL
from spikeguard_server.notify.message import ChannelMessage, brief
from spikeguard_server.notify.picture import ImageForm, draw

_PAGE = "font:16px/1.5 -apple-system,'Segoe UI',Roboto,sans-serif;max-width:40em;margin:0 auto"
_CURVE = "width:100%;max-width:34em;height:auto"
_BUTTON = (
    "display:inline-block;padding:12px 24px;border-radius:8px;background:#1d5fd1;color:#ffffff;"
    "text-decoration:none;font-weight:600"
)


def mail_picture(message: ChannelMessage) -> bytes:
    """The curve as PNG; empty where there is none. A mail without it is better than none."""
    return b"" if message.picture is None else draw(message.picture, ImageForm.PNG)


def mail_html(message: ChannelMessage, *, drawn: bool = False) -> str:
    """The mail of `message`, whose title is its subject; `drawn`: with its picture."""
    first, *rest = message.lines()
    links, five = dict(message.links), len(brief(message.spike)) - 1 if message.spike else 0
    parts = [f"<p><b>{html_text(first)}</b></p>"]
    parts += [f"<p>{html_text(line)}</p>" for line in rest[:five]]
    parts += _ways_to_decide(links.pop("Decide", None), links.pop(LABEL, None))
    parts += [f'<p><img src="cid:{PICTURE}" alt="The curve" style="{_CURVE}"></p>'] * drawn
    parts += [f"<p>{html_text(line)}</p>" for line in rest[five:]]
    parts += [
        f'<p><a href="{html_text(url)}">{html_text(name)}</a></p>' for name, url in links.items()
    ]
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def _ways_to_decide(page: str | None, link: str | None) -> list[str]:
    """One button. With a `link` that needs no signing in it is that, and says what it is."""
    if page is None:
        return []
    if link is None:
        return [f"<p>{_button(page, 'Look and decide')}</p>"]
    other = f'<a href="{html_text(page)}">sign in and decide</a>'
    return [
        f"<p>{_button(link, LABEL)}</p>",
        f"<p>The button works once, for this proposal, without signing in. Or {other}.</p>",
    ]


def _button(address: str, label: str) -> str:
    return f'<a style="{_BUTTON}" href="{html_text(address)}">{html_text(label)}</a>'
