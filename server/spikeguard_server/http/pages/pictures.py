"""The newest pictures of incidents, each drawn once for all who look.

Invariants: bounded in number; whoever asks for a picture that is being drawn waits for it, since
matplotlib draws one at a time anyway.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from threading import Lock
from typing import Final

from spikeguard_server.report.facts import IncidentPicture

_log = logging.getLogger(__name__)
MOST: Final = 32  # some 40 kB each


class Pictures:
    """Draws what has changed since somebody looked last."""

    def __init__(self) -> None:
        self._drawn = OrderedDict[str, bytes]()
        self._lock = Lock()

    def svg(self, project: str, picture: IncidentPicture) -> bytes:
        """The picture as an image; empty where nothing was measured."""
        if not any(curve.steps for curve in picture.curves):
            return b""
        key = _key(project, picture)
        with self._lock:
            if key not in self._drawn:
                self._drawn[key] = _draw(picture)
            self._drawn.move_to_end(key)
            while len(self._drawn) > MOST:
                self._drawn.popitem(last=False)
            return self._drawn[key]


def _draw(picture: IncidentPicture) -> bytes:
    from spikeguard_server.report.plots import svg_image  # matplotlib: 0.7 s at every start

    try:
        return svg_image(picture)
    except Exception:  # whatever a job sent: one decides without a picture too
        _log.exception("the picture of %s", picture.id)
        return b""


def _key(project: str, picture: IncidentPicture) -> str:
    """Tells one state of one incident from another: samples are only ever added."""
    incident = picture.incident
    curves = [(c.segment, c.kept_to, len(c.steps), c.steps[-1:]) for c in picture.curves]
    marks = (incident.onset_step, incident.peak_step, incident.peak_loss, incident.trend)
    return repr((project, picture.id, curves, marks, picture.rollbacks))
