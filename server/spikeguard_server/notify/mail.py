"""A message as the HTML of a mail: what to decide first, then one fact a paragraph.

Invariants: pure; every value is escaped by the one function that writes text as HTML; no picture,
no script, nothing that is fetched.
"""

from __future__ import annotations

from spikeguard_protocol.escaping import html_text
from spikeguard_server.notify.message import Message

_PAGE = "font:16px/1.5 -apple-system,'Segoe UI',Roboto,sans-serif;max-width:40em;margin:0 auto"
_BUTTON = (
    "display:inline-block;padding:12px 24px;border-radius:8px;background:#1d5fd1;color:#ffffff;"
    "text-decoration:none;font-weight:600"
)


def mail_html(message: Message) -> str:
    """The mail of `message`, whose title is its subject."""
    first, *rest = message.lines()
    links = dict(message.links)
    decide = links.pop("Decide", None)
    parts = [f"<p><b>{html_text(first)}</b></p>"]
    if decide is not None:
        parts.append(f'<p><a style="{_BUTTON}" href="{html_text(decide)}">Look and decide</a></p>')
    parts += [f"<p>{html_text(line)}</p>" for line in rest]
    parts += [
        f'<p><a href="{html_text(url)}">{html_text(name)}</a></p>' for name, url in links.items()
    ]
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'
