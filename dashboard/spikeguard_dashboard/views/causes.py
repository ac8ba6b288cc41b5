"""What may have started an incident, the likeliest on top, with what speaks for and against."""

from __future__ import annotations

from collections.abc import Sequence

from spikeguard_client import Cause, FirstLayer, IncidentDetail
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html


def causes(incident: IncidentDetail) -> Html:
    """The ranking of the causes, the layer that moved first, and what to do the next morning."""
    rows = [_row(cause) for cause in incident["causes"]]
    columns = [Column("Cause"), Column("Sure", numeric=True)]
    columns += [Column("For", named=True), Column("Against", named=True)]
    parts = [markup.table(columns, rows, stacked=True)]
    first = incident["first_layer"]
    if first is not None and "layers" not in incident["remedy"]["evidence"]:  # which says it
        parts.append(markup.paragraph(_layer(first, incident["onset_step"])))
    asked = incident["remedy"]["follow_ups"]
    parts += [markup.paragraph(f"For the next morning: {text}") for text in asked]
    return markup.joined(*parts, gap="")


def _row(cause: Cause) -> Sequence[Content]:
    because = "; ".join(cause["reasons"]) or "cannot be ruled out"
    against = "; ".join(cause["against"]) or words.NOTHING
    return [words.cause(cause["cause"]), words.percent(cause["confidence"]), because, against]


def _layer(first: FirstLayer, onset: int) -> str:
    ahead = onset - first["step"]
    when = "at the onset" if ahead == 0 else _steps(ahead)
    return (
        f"First layer to move: {first['layer']}, at step {first['step']:,}, {when}. Its "
        f"{words.title(first['signal']).lower()} was {words.figure(first['ratio'], 3)} times its "
        f"usual size; "
        f"{first['layers_moved'] - 1} of the other {first['layers_known'] - 1} moved with it."
    )


def _steps(ahead: int) -> str:
    steps = f"{abs(ahead):,} step{'s' * (abs(ahead) != 1)}"
    return f"{steps} before the loss" if ahead > 0 else f"{steps} after the onset"
