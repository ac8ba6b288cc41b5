"""Post-mortems: facts in, Markdown, HTML, JSON and pictures out."""

from spikeguard_server.report.facts import AttemptFact, PostMortem, RecordedCurve
from spikeguard_server.report.render import MEDIA_TYPES, ReportFormat, render

__all__ = ["MEDIA_TYPES", "AttemptFact", "PostMortem", "RecordedCurve", "ReportFormat", "render"]
