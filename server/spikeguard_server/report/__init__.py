"""Post-mortems: facts in, Markdown, HTML, JSON and pictures out.

Law: pure. Nothing is looked up, nothing is written, and the clock is an argument.
"""

from spikeguard_server.report.facts import AttemptFact, PostMortem, RecordedCurve
from spikeguard_server.report.render import MEDIA_TYPES, ReportFormat, render

__all__ = [
    "MEDIA_TYPES",
    "AttemptFact",
    "PostMortem",
    "RecordedCurve",
    "ReportFormat",
    "render",
]
