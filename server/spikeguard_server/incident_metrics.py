"""What closed incidents came to, for Prometheus: histograms and counters by project."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from spikeguard_core.lifecycle.incident_figures import IncidentFigures


class IncidentMetrics:
    """What closed incidents came to, of those that this process settled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(
            name: str, about: str, edges: tuple[float, ...], label: str | None = None
        ) -> Histogram:
            labels = ("project",) if label is None else ("project", label)
            return Histogram(f"spikeguard_{name}", about, labels, buckets=edges, registry=registry)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"spikeguard_{name}", about, ("project", *labels), registry=registry)

        self._detection_steps = histogram(
            "detection_delay_steps",
            "Optimizer steps from a spike's onset to its detection, of incidents that have closed.",
            (0, 1, 2, 3, 5, 10, 20, 50, 100, 500),
        )
        self._detection_s = histogram(
            "detection_delay_seconds",
            "Seconds of training from a spike's onset to its detection.",
            (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
        )
        self._decision_s = histogram(
            "decision_delay_seconds",
            "Seconds from an incident's first proposal to the first decision, by person or policy.",
            (1, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 86400),
            "by",
        )
        self._recovery_s = histogram(
            "recovery_duration_seconds",
            "Seconds from a spike's onset to its close, of those that are back on their trend.",
            (10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400),
            "outcome",
        )
        self._recovery_steps = histogram(
            "recovery_duration_steps",
            "Optimizer steps from a spike's onset to its close, those trained again included.",
            (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
            "outcome",
        )
        cost = "Optimizer steps that incidents cost: trained again, dropped, or damaged."
        self._lost_steps = counter("lost_steps", cost)
        self._lost_s = counter("lost_seconds", "Seconds of training that the lost steps took.")
        self._lost_money = counter(
            "lost_money", "The price of the lost steps, where the policy sets one.", "currency"
        )
        self._saved_steps = counter(
            "saved_steps",
            "Optimizer steps that rollbacks did not train again, and a restart from the newest"
            " checkpoint on disk would have.",
        )
        self._saved_s = counter("saved_seconds", "Seconds of training that the saved steps took.")
        self._saved_money = counter(
            "saved_money", "The price of the saved steps, where the policy sets one.", "currency"
        )

    def observe(self, project: str, found: IncidentFigures) -> None:
        """Count one incident; what is not known is left out."""
        self._detection_steps.labels(project).observe(found.detection_steps)
        self._lost_steps.labels(project).inc(found.lost_steps)
        self._lost_s.labels(project).inc(found.lost_s or 0.0)
        self._saved_steps.labels(project).inc(found.saved_steps)
        self._saved_s.labels(project).inc(found.saved_s or 0.0)
        if found.detection_s is not None:
            self._detection_s.labels(project).observe(found.detection_s)
        if found.decision_s is not None and found.decided_by is not None:
            self._decision_s.labels(project, found.decided_by).observe(found.decision_s)
        if found.outcome is not None:
            if found.recovery_s is not None:
                self._recovery_s.labels(project, found.outcome).observe(found.recovery_s)
            if found.recovery_steps is not None:
                self._recovery_steps.labels(project, found.outcome).observe(found.recovery_steps)
        if found.lost_money is not None:
            self._lost_money.labels(project, found.currency).inc(found.lost_money)
        if found.saved_money is not None:
            self._saved_money.labels(project, found.currency).inc(found.saved_money)
