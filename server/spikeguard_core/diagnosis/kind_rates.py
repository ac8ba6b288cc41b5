"""How often spikes of each kind occur: what is held of one before anything of it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spikeguard_protocol import Kind

ENOUGH = 20  # endings from which on a project's own count; the published rates count as so many


@dataclass(frozen=True, slots=True)
class BaseRates:
    """How spikes end, as shares of 1."""

    recoverable: float
    lingering: float
    divergent: float
    endings: int = 0  # of the project's own that were judged to their end

    @property
    def lasting_odds(self) -> float:
        """The odds that a spike does lasting damage, as a multiple of those of the published
        rates."""
        return _lasting_odds(self) / _lasting_odds(PUBLISHED)

    @property
    def sentence(self) -> str:
        """The rates, and what they are."""
        heal, rest = f"{self.recoverable:.0%} heal", f"{self.lingering:.0%} linger"
        rates = f"{heal}, {rest} and {self.divergent:.0%} diverge"
        if self.endings < ENOUGH:
            own = f"this project's own count from {ENOUGH} on, {self.endings} so far"
            return f"Of spikes in general {rates} (published figures; {own})."
        own = f"its {self.endings} endings, and the published rates as {ENOUGH} more"
        return f"Of this project's spikes {rates} ({own})."


PUBLISHED = BaseRates(0.80, 0.15, 0.05)


def _lasting_odds(rates: BaseRates) -> float:
    return (1.0 - rates.recoverable) / rates.recoverable


def learnt(endings: Mapping[Kind, int]) -> BaseRates:
    """The rates by a project's own endings, by kind; the published ones while they are few."""
    kinds = (Kind.RECOVERABLE, Kind.LINGERING, Kind.DIVERGENT)
    own = [endings.get(kind, 0) for kind in kinds]
    if sum(own) < ENOUGH:
        return replace(PUBLISHED, endings=sum(own))
    published = (PUBLISHED.recoverable, PUBLISHED.lingering, PUBLISHED.divergent)
    both = ENOUGH + sum(own)
    heals, lingers, diverges = (
        (ENOUGH * rate + n) / both for rate, n in zip(published, own, strict=True)
    )
    return BaseRates(heals, lingers, diverges, sum(own))


def with_odds(lasting: float, odds: float) -> float:
    """A probability of lasting damage that holds at the published rates, where its odds are `odds`
    times as high (Bayes)."""
    return lasting if odds == 1.0 else lasting * odds / (lasting * odds + 1.0 - lasting)
