"""What closed incidents came to, for Prometheus: histograms and counters by project."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from spikeguard_core.lifecycle.incident_figures import IncidentFigures


class IncidentMetrics:
    """What closed incidents came to, of those that this process settled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._detection_steps = Histogram(
            "spikeguard_detection_delay_steps",
            "Optimizer steps from a spike's onset to its detection, of incidents that have closed.",
            ("project",),
            buckets=(0, 1, 2, 3, 5, 10, 20, 50, 100, 500),
            registry=registry,
        )
        self._decision_s = Histogram(
            "spikeguard_decision_delay_seconds",
            "Seconds from an incident's first proposal to the first decision, by person or policy.",
            ("project", "by"),
            buckets=(1, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 86400),
            registry=registry,
        )
        self._recovery_s = Histogram(
            "spikeguard_recovery_duration_seconds",
            "Seconds from a spike's detection to its close, of those that are back on their trend.",
            ("project", "outcome"),
            buckets=(10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400),
            registry=registry,
        )
        self._lost_steps = Counter(
            "spikeguard_lost_steps",
            "Optimizer steps that incidents cost: trained again, dropped, or damaged.",
            ("project",),
            registry=registry,
        )
        self._lost_s = Counter(
            "spikeguard_lost_seconds",
            "Seconds of training that the lost steps took.",
            ("project",),
            registry=registry,
        )

    def observe(self, project: str, found: IncidentFigures) -> None:
        """Count an incident that has closed."""
        self._detection_steps.labels(project).observe(found.detection_steps)
        self._lost_steps.labels(project).inc(found.lost_steps)
        self._lost_s.labels(project).inc(found.lost_s or 0.0)
        if found.decision_s is not None and found.decided_by is not None:
            self._decision_s.labels(project, found.decided_by).observe(found.decision_s)
        if found.recovery_s is not None and found.outcome is not None:
            self._recovery_s.labels(project, found.outcome).observe(found.recovery_s)
