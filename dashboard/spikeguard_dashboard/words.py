"""Figures, times and states in plain words.

Who shows it escapes it. Numbers are written for a person: grouped, rounded to what matters, never
without their unit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, tzinfo

from spikeguard_client.shapes import Ability, Change, Command, Incident
from spikeguard_protocol.phrases import batches_phrase, sure_phrase
from spikeguard_protocol.vocabulary import OUTCOME_WORDS

NOTHING = "—"  # shown where there is no value
OUTCOME: Mapping[str, str] = {outcome.value: words for outcome, words in OUTCOME_WORDS.items()}
SIGNAL: Mapping[str, tuple[str, str]] = {  # name -> title, unit
    "loss": ("Loss", "nats per token"),
    "loss_rank_max": ("Loss of the worst rank", "nats per token"),
    "grad_norm": ("Gradient norm", "global L2 before clipping"),
    "grad_norm_at_step": ("Gradient norm at step", "global L2 as the optimizer saw it"),
    "param_norm": ("Parameter norm", "global L2"),
    "adam_v_norm": ("Adam second-moment norm", "L2"),
    "update_norm": ("Update norm", "L2 per unit of LR"),
    "update_norm_sampled": ("Update norm, sampled", "L2 per unit of LR"),
    "lr": ("Learning rate", "per step"),
    "tokens_per_second": ("Throughput", "tokens/s"),
    "step_time": ("Step time", "s"),
    "update_dropped": ("Updates dropped", "1 = dropped"),
    "step_skipped": ("Steps skipped by the gradient scaler", "1 = skipped"),
    "skipped_share": ("Updates skipped or dropped", "share of the newest 200 steps"),
    "replicas_apart": ("Ranks apart", "with other weights than most"),
    "replica_apart": ("Lowest rank apart", "its number"),
    "grad_norm_clipped": ("Gradient norm, clipped", "global L2 after clipping"),
    "grad_clipped": ("Clipped", "share of the tensors"),
    "clip_factor": ("Clipping factor", "clipped over raw norm"),
    "clip_limit": ("Clipping limit", "norm above which a step is clipped"),
    "grad_norm_z": ("Gradient norm, z", "standard deviations"),
    "grad_norm_mean": ("Gradient norm, mean", "of the clipping rule"),
    "grad_norm_std": ("Gradient norm, deviation", "of the clipping rule"),
    "token_entropy": ("Token entropy", "nats"),
    "unseen_tokens": ("Tokens never seen before", "share of the step"),
    "unchanged_parameters": ("Parameters left unchanged", "share of a sample"),
    "loss_sequence_max": ("Worst sequence's loss", "nats per token"),
    "loss_scale": ("Loss scale", "of the gradient scaler"),
    "adam_beta2": ("Adam's beta2", "the smallest of the groups"),
    "activation_outlier_max": ("Largest activation", "over the RMS of its layer"),
    "attention_logit_max": ("Largest attention logit", "before the softmax"),
    "activation_norm_max": ("Largest activation norm", "L2 of a layer's output"),
}


def title(signal: str) -> str:
    """What a signal is called on a page."""
    return SIGNAL.get(signal, (signal, ""))[0]


def axis_title(signal: str) -> list[str]:
    """What a signal is called on an axis, and below that its unit."""
    name, unit = SIGNAL.get(signal, (signal, ""))
    return [name, f"({unit})"] if unit else [name]


def plain(word: str) -> str:
    """A word of the vocabulary without its underscores."""
    return word.replace("_", " ")


def ability(value: Ability) -> str:
    """Whether something can be done: `rollback: no`."""
    return f"{plain(value['name'])}: {value['answer']}"


def sentences(*parts: str) -> str:
    """Those that say something, each with its full stop."""
    return " ".join(f"{part.rstrip('.')}{'.' * (part[-1] != '?')}" for part in parts if part)


def change(value: Change) -> str:
    """A setting that changed, from what to what; of what is secret only that it did."""
    before, after = value["before"], value["after"]
    if before == after:
        return f"{value['field']}: another one, not shown"
    return f"{value['field']}: {_setting(before)} → {_setting(after)}"


def _setting(value: object) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def count(value: int | None) -> str:
    """A whole number with thousands grouped."""
    return NOTHING if value is None else f"{value:,}"


def figure(value: float | None, digits: int = 4) -> str:
    """A measured number to `digits` significant digits; non-finite ones by their word."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - _magnitude(value))}f}"


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def big(value: float | None) -> str:
    """A large count, shortened: 1.3 M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f}"


def percent(value: float) -> str:
    """A probability in whole percent."""
    return sure_phrase(value) if math.isfinite(value) else NOTHING


def clock(moment: str | None, zone: tzinfo) -> str:
    """An RFC 3339 time in the reader's zone: `Fri 20 Nov 03:12:09 CET`."""
    if not moment:
        return NOTHING
    try:
        return datetime.fromisoformat(moment).astimezone(zone).strftime("%a %d %b %H:%M:%S %Z")
    except ValueError:
        return moment


def batches(value: object) -> str:
    """A half-open range of batch positions `[a, b]`, said inclusively."""
    return "not known" if value is None else batches_phrase(value)


def story(incident: Incident) -> str:
    """What happened in one sentence, as the server tells it, and where it stands."""
    said = incident["summary"]
    began = f"Step {count(incident['onset_step'])}: {said[:1].lower()}{said[1:]}"
    if incident["outcome"]:
        ended = OUTCOME.get(incident["outcome"], plain(incident["outcome"]))
        return f"{began}; closed at step {count(incident['closed_step'])}: {ended}."
    if incident["height"] is None:
        return f"{began}."
    return f"{began}; at step {count(incident['newest_step'])} it is {incident['height']}."


def waiting(proposal: Command | None) -> bool:
    """Whether a person's decision is asked for."""
    return proposal is not None and proposal["state"] == "proposed"


def expected(effect: str | None, size: float | None) -> str:
    """What whoever made a change expects of the loss; nothing where they did not say."""
    if effect is None:
        return ""
    if effect == "none":
        return "expected no effect"
    return f"expected {effect}" if size is None else f"expected {effect} by {size:g} nats"


def shortened(text: str, most: int) -> str:
    """No more than `most` characters of it."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
