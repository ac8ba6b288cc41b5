"""The newest pictures of incidents, each drawn once for all who look.

Invariants: bounded in number, and in how often one is drawn; whoever asks for a picture that is
being drawn waits for it, since matplotlib draws one at a time anyway.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final

from spikeguard_server.notify.picture import ImageForm, incident_image
from spikeguard_server.report.facts import IncidentPicture

MOST: Final = 32  # some 40 kB each
FRESH_S: Final = 2.0  # new samples alone have it drawn anew so often, at most


@dataclass(frozen=True, slots=True)
class _Drawn:
    shows: str  # which samples
    svg: bytes
    at: float  # monotonic


class PictureCache:
    """Draws what has changed since somebody looked last."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._drawn = OrderedDict[str, _Drawn]()
        self._lock = Lock()

    def svg(self, project: str, picture: IncidentPicture) -> bytes:
        """The picture as an image; empty where nothing was measured, or it cannot be drawn."""
        if not picture.measured:
            return b""
        key, shows = _key(project, picture), _samples(picture)
        with self._lock:
            known = self._drawn.get(key)
            if known is None or self._outdated(known, shows):
                known = self._drawn[key] = _Drawn(
                    shows, incident_image(picture, ImageForm.SVG), monotonic()
                )
            self._drawn.move_to_end(key)
            while len(self._drawn) > MOST:
                self._drawn.popitem(last=False)
            return known.svg

    def _outdated(self, known: _Drawn, shows: str) -> bool:
        return known.shows != shows and monotonic() - known.at >= self._fresh_s


def _key(project: str, picture: IncidentPicture) -> str:
    """What changes it at once: another branch, another onset."""
    segments = [(curve.segment, curve.kept_to) for curve in picture.curves]
    incident = picture.incident
    return repr((project, picture.id, segments, picture.rollbacks, incident.onset_step))


def _samples(picture: IncidentPicture) -> str:
    """Samples are only ever added."""
    incident = picture.incident
    ends = [(len(curve.steps), curve.steps[-1:]) for curve in picture.curves]
    return repr((ends, incident.peak_step, incident.peak_loss, incident.trend))
