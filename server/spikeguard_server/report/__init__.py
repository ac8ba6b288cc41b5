"""Post-mortems: facts in, Markdown, HTML, JSON and pictures out.

Law: pure. Nothing is looked up, nothing is written, and the clock is an argument.
"""

from spikeguard_server.report.facts import (
    AttemptFact,
    CommandFact,
    Curve,
    LeftOutFact,
    PostMortem,
    RevisionFact,
)
from spikeguard_server.report.render import MEDIA_TYPES, Format, render

__all__ = [
    "MEDIA_TYPES",
    "AttemptFact",
    "CommandFact",
    "Curve",
    "Format",
    "LeftOutFact",
    "PostMortem",
    "RevisionFact",
    "render",
]
