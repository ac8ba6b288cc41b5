"""The documents as a reader meets them: whole, honest about what is missing, and harmless."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt as CommonMark

from spikeguard_core.detection.sample import Sample
from spikeguard_core.lifecycle.command_life import TAKEN_BACK
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import CommandState, Outcome, SegmentId, SegmentReason
from spikeguard_protocol.identity import BatchRange
from spikeguard_protocol.orders import SkipBatches, Watch
from spikeguard_server.notify.facts import incident_image
from spikeguard_server.report.facts import IncidentPicture, PostMortem
from spikeguard_server.report.figures import spent_by
from spikeguard_server.report.render import ReportFormat, render
from spikeguard_server.report.wording import heading_of, summary_of
from tests.hostile import HOSTILE, acted_on
from tests.server.store.jobs import healthy

MAX_BYTES = 200_000
PAGE = [
    "What happened",
    "Root cause",
    "What was done, and why",
    "Outcome",
    "Cost",
    "Timeline",
    "Follow-ups",
]
APPENDIX = ["Signals", "Classification", "Causes considered", "Commands"]


def svg_of(facts: PostMortem) -> str:
    """As the server draws it; what draws takes half a second of every process that imports it."""
    from spikeguard_server.report import plots

    return plots.svg_of(facts)


class Page(HTMLParser):
    """Tags in the order they come, their attributes, and that they close."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


_WRITTEN: dict[tuple[int, str], tuple[PostMortem, bytes]] = {}


def written(facts: PostMortem, form: str) -> bytes:
    """The document; of facts that many tests read it is drawn once."""
    key = (id(facts), form)
    if key not in _WRITTEN:
        _WRITTEN[key] = (facts, render(facts, form))
    return _WRITTEN[key][1]


def html(facts: PostMortem) -> str:
    return written(facts, "html").decode()


def markdown(facts: PostMortem) -> str:
    return written(facts, "md").decode()


def read_markdown(text: str) -> Page:
    """What a reader of Markdown with GitHub's tables makes of it, HTML passed on."""
    return Page(CommonMark("commonmark").enable(["table", "strikethrough"]).render(text))


def words(facts: PostMortem) -> PostMortem:
    """The same without its picture, which takes longer than everything else."""
    return replace(facts, curves=())


def body(facts: PostMortem) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(written(facts, "json"))
    return read


@pytest.mark.parametrize("form", list(ReportFormat))
@pytest.mark.parametrize("name", ["healed", "rolled_back", "broken"])
def test_a_document_stays_under_200_kb(
    form: ReportFormat, name: str, request: pytest.FixtureRequest
) -> None:
    facts: PostMortem = request.getfixturevalue(name)
    assert 2_000 < len(written(facts, form)) < MAX_BYTES


def test_the_page_comes_first_and_what_it_rests_on_behind_it(rolled_back: PostMortem) -> None:
    text = markdown(words(rolled_back))
    page, _, appendix = text.partition("# Appendix")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == PAGE
    behind = re.findall(r"^## (.*)$", appendix, re.MULTILINE)
    assert [title for title in behind if title in APPENDIX] == APPENDIX
    assert re.findall(r"<h2>(.*?)</h2>", html(words(rolled_back))) == [*PAGE, *behind]


def test_the_page_is_whole_and_fetches_and_runs_nothing(rolled_back: PostMortem) -> None:
    page = Page(html(rolled_back))
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "link", "form"}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):  # no run of a tracker is linked here
                assert value is not None
                assert value.startswith(("#", "data:"))
    style = html(rolled_back).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_read_as_it_is_written(rolled_back: PostMortem, text: str) -> None:
    def said(text: str) -> PostMortem:
        command = replace(
            rolled_back.commands[-1], decided_by=text[:80], decision_reason=text, result=text,
            end_reason=text, judgement=text,
        )  # fmt: skip
        return words(replace(rolled_back, commands=(command,)))

    shown = read_markdown(markdown(said(text)))
    for made in (shown, Page(html(said(text)))):
        assert acted_on(made.text) == []
        assert not {tag for tag, _ in made.tags} & {"script", "img", "a", "s"}
    tags = [tag for tag, _ in shown.tags]
    assert tags == [tag for tag, _ in read_markdown(markdown(said("a word"))).tags]


def test_every_command_is_there_with_who_decided_and_when(rolled_back: PostMortem) -> None:
    told = words(rolled_back)
    text, lines = Page(html(told)).text, markdown(told).replace("\\", "").splitlines()
    for command in rolled_back.commands:
        assert str(command.id) in text
        assert command.decided_at is not None
        decided = f"{command.decided_at:%Y-%m-%d %H:%M:%S}"
        assert decided in text
        (row,) = [line for line in lines if line.startswith(f"| {command.id} |")]
        assert decided in row
        assert (command.decided_by or "policy") in row
    assert "mara.lindqvist" in text
    assert "policy 1" in text


def test_what_was_saved_since_the_first_move_is_told_not_to_be_gone_on_from(
    healed: PostMortem,
) -> None:
    """Weights that changed at one step show in the loss of the next."""
    onset, trend = healed.incident.onset_step, healed.incident.trend
    assert trend is not None
    ended = replace(
        healed.incident, outcome=Outcome.RUN_ENDED, trend=replace(trend, level=trend.level - 0.5),
        first_moves={"param_norm": onset - 1, "loss": onset},
    )  # fmt: skip
    said = markdown(replace(healed, incident=ended))
    assert f"What was saved from step {onset - 1:,} on is from inside the damage" in said


def test_the_symptoms_tell_loss_before_peak_and_later(rolled_back: PostMortem) -> None:
    seen, incident = body(rolled_back)["symptoms"], body(rolled_back)["incident"]
    assert incident["pre_loss"] == pytest.approx(healthy(400), abs=0.05)
    assert incident["peak_loss"] == pytest.approx(healthy(400) + 1.72, abs=0.1)
    later = healthy(seen["later_step"])  # of the kept segment only
    assert seen["later_loss"] == pytest.approx(later, abs=0.05)


def test_while_samples_still_come_the_later_loss_is_not_yet_known(rolled_back: PostMortem) -> None:
    followed = words(replace(rolled_back, followed_to=903))
    assert body(followed)["symptoms"]["later_loss"] is None
    assert "not yet" in markdown(followed)
    assert "step 903" in markdown(followed)
    assert "not yet" not in markdown(words(rolled_back))


def test_the_cost_is_what_the_rollback_undid(rolled_back: PostMortem) -> None:
    cost = body(replace(rolled_back, price_per_hour=32.8))["cost"]
    assert (cost["steps"], cost["tokens"]) == (270, 270 * 4_096)
    assert cost["seconds"] == pytest.approx(135)
    assert cost["money"] == pytest.approx(135 / 3_600 * 32.8)
    ahead = replace(rolled_back.commands[-1], action=SkipBatches(BatchRange(900, 907)))
    both = replace(rolled_back, commands=(*rolled_back.commands, ahead))
    assert (cost["batches_skipped"], body(both)["cost"]["batches_skipped"]) == (5, 12)


def test_of_a_job_that_somebody_started_again_the_cost_and_the_peak_are_those_of_the_branch_it_left(
    restarted: PostMortem,
) -> None:
    cost, text = body(restarted)["cost"], markdown(restarted)
    assert (cost["steps"], cost["in_damage"]) == (320, 0)
    assert cost["seconds"] == pytest.approx(160)
    peak = body(restarted)["evidence"]["peaks"]["loss"]
    assert (peak["value"], peak["step"]) == (
        restarted.incident.peak_loss, restarted.incident.peak_step,
    )  # fmt: skip
    assert re.search(r"\| 300 \| attempt 2 began \|", text)
    assert "Attempt 2 began after step 300. It was closed: recovered." in text


def test_how_it_ended_is_said_once(rolled_back: PostMortem) -> None:
    page = markdown(words(rolled_back)).split("# Appendix")[0]
    assert "came back" not in page
    for said in (
        "It was closed: recovered.",
        "carried out at step 570",
        "The cause is not known: ",
    ):
        assert page.count(said) == 1


def test_a_single_row_that_stands_out_long_after_makes_no_damage_of_what_lies_between(
    healed: PostMortem,
) -> None:
    """And where the loss was later is told of the newest rows before a late close."""
    curve, incident, trend = healed.curves[0], healed.incident, healed.incident.trend
    assert trend is not None
    onset, end = incident.onset_step, curve.steps[-1]

    def loss(step: int) -> float:
        high = onset <= step < onset + 30 or step == end - 5
        return trend.at(step) + (10.0 * trend.scale if high else 0.0)

    drawn = replace(curve, values={**curve.values, "loss": tuple(map(loss, curve.steps))})
    late = replace(incident, closed_step=end, peak_step=onset)
    told = body(replace(healed, curves=(drawn,), commands=(), incident=late))
    assert told["cost"]["in_damage"] == 30
    assert told["symptoms"]["later_step"] == end


def test_steps_in_damage_that_no_rollback_undid_count_up_to_the_end_of_a_run_that_ends_damaged(
    rolled_back: PostMortem,
) -> None:
    """The damaged branch alone, as if the run had ended on it."""
    branch = replace(rolled_back.curves[0], kept_to=None)
    onset, end = rolled_back.incident.onset_step, branch.steps[-1]
    incident = replace(rolled_back.incident, outcome=Outcome.RUN_ENDED, closed_step=end)
    facts = replace(
        rolled_back, commands=(), curves=(branch,), incident=incident, price_per_hour=32.8
    )
    cost = body(facts)["cost"]
    assert (cost["steps"], cost["in_damage"]) == (0, pytest.approx(end - onset + 1, abs=2))
    assert cost["seconds"] == pytest.approx(cost["in_damage"] * 0.5)
    assert cost["money"] > 0


def values_on_trend(facts: PostMortem) -> dict[str, tuple[float | None, ...]]:
    """The first curve's values, with a loss that never left its trend."""
    curve, trend = facts.curves[0], facts.incident.trend
    assert trend is not None
    return {**curve.values, "loss": tuple(trend.at(step) for step in curve.steps)}


def test_dropped_updates_count_each_once_and_with_the_time_that_they_took(
    healed: PostMortem,
) -> None:
    curve, onset = healed.curves[0], healed.incident.onset_step
    calm = values_on_trend(healed)
    out = tuple(float(onset <= step < onset + 40) for step in curve.steps)
    took = tuple(3.0 for _ in curve.steps)
    dropping = replace(curve, values={**calm, "update_dropped": out, "step_time": took})
    cost = body(replace(healed, curves=(dropping,), commands=()))["cost"]
    assert (cost["dropped"], cost["in_damage"], cost["steps_lost"]) == (40, 0, 40)
    assert cost["seconds"] == pytest.approx(120.0)
    assert "| Updates dropped | 40 |" in markdown(replace(healed, curves=(dropping,)))


def test_steps_whose_updates_round_to_nothing_count_from_measurement_to_measurement(
    healed: PostMortem,
) -> None:
    """The share of unchanged parameters is measured every ten steps here, at 0.97 for forty."""
    curve, onset = healed.curves[0], healed.incident.onset_step
    calm = values_on_trend(healed)
    shares = tuple(
        None if (step - onset) % 10 else (0.97 if 0 <= step - onset < 40 else 0.6)
        for step in curve.steps
    )
    stalled = replace(curve, values={**calm, "unchanged_parameters": shares})
    facts = replace(healed, curves=(stalled,), commands=())
    cost = body(facts)["cost"]
    assert (cost["stalled"], cost["dropped"], cost["steps_lost"]) == (40, 0, 40)
    assert cost["seconds"] > 0
    assert "| Updates that rounded to nothing | 40 |" in markdown(facts)
    assert "rounded to nothing" not in markdown(healed)


def test_values_that_are_not_finite_are_words_and_marks(broken: PostMortem) -> None:
    assert body(broken)["incident"]["worst_z"]["loss"] == "inf"
    assert "not finite at 124 steps" in markdown(broken)
    assert "not finite" in svg_of(broken)
    for text in (Page(html(words(broken))).text, markdown(words(broken))):
        assert re.search(r"\bnan\b", text) is None


def test_a_run_with_nothing_but_a_loss_gets_a_document_too(healed: PostMortem) -> None:
    curves = tuple(replace(curve, values={"loss": curve.values["loss"]}) for curve in healed.curves)
    bare = replace(
        healed,
        curves=curves,
        commands=(),
        revisions=(),
        attempts=(),
        step_time_s=None,
        tokens_per_step=None,
        price_per_hour=None,
    )
    text = markdown(bare)
    assert "Only the loss was reported" in text
    assert "not known" in text
    assert "Nobody ordered anything. " in text
    assert "What was done" not in text
    assert "| Money | no price was set |" in text
    assert "## Links" not in text


def test_without_samples_there_is_text_and_no_picture(healed: PostMortem) -> None:
    empty = replace(healed, curves=(), incident=replace(healed.incident, trend=None))
    assert "data:image" not in markdown(empty)
    assert "<svg" not in html(empty)
    assert "The loss rose from" in html(empty)


# --- follow-ups ---


def followups(facts: PostMortem) -> str:
    return " ".join(body(facts)["follow_ups"])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (CommandState.REFUSED, "#1.2 out: target is gone. Remove the cause."),
        (CommandState.FAILED, "#1.2 out: target is gone. Remove the cause."),
        (CommandState.UNKNOWN, "Nobody knows what became of"),
    ],
)
def test_a_command_that_was_not_carried_out_is_a_follow_up(
    state: CommandState, said: str, rolled_back: PostMortem
) -> None:
    command = replace(rolled_back.commands[-1], state=state, result="target is gone")
    assert said in followups(replace(rolled_back, commands=(command,)))


def test_of_a_watch_that_its_attempt_never_reported_nothing_is_asked(
    rolled_back: PostMortem,
) -> None:
    lost = replace(rolled_back.commands[-1], action=Watch(200), state=CommandState.UNKNOWN)
    assert "Nobody knows" not in followups(replace(rolled_back, commands=(lost,)))


def test_of_what_nobody_answered_it_is_said_how_long_there_was_to_and_who_to_ask(
    rolled_back: PostMortem,
) -> None:
    last = rolled_back.commands[-1]

    def said(state: CommandState, waited_s: float) -> str:
        ended = last.proposed_at + timedelta(seconds=waited_s)
        command = replace(last, state=state, decided_at=None, finished_at=ended)
        return followups(replace(rolled_back, commands=(command,)))

    assert "within 4.0 h: see who is paged" in said(CommandState.EXPIRED, 14400)
    assert "within 9.0 s: see who is paged for this run, and whether" in said(
        CommandState.EXPIRED, 9
    )
    assert "did not fetch it in time: look at the job" in said(CommandState.UNDELIVERED, 14400)
    for state in TAKEN_BACK - {CommandState.EXPIRED}:
        assert "paged" not in said(state, 14400)


# --- pictures ---


def test_the_picture_draws_what_was_undone_apart(rolled_back: PostMortem) -> None:
    svg = svg_of(rolled_back)
    assert ">undone<" in svg
    assert "rollback to step 300" in svg
    assert "onset 401" in svg
    assert "earlier trend" in svg


def test_what_came_after_the_close_belongs_to_no_figure_of_the_incident(healed: PostMortem) -> None:
    """The samples go on for 500 steps, on which the next incident may begin and be undone."""
    end, first = healed.incident.closed_step, healed.curves[0]
    assert end is not None
    steps = (*first.steps, *range(first.steps[-1] + 1, end + 101))
    more = len(steps) - len(first.steps)
    values = {name: (*column, *([999.0] * more)) for name, column in first.values.items()}
    undone = replace(first, steps=steps, values=values, kept_to=end)
    again = replace(
        first, segment=replace(first.segment, number=7), reason=SegmentReason.ROLLBACK,
        steps=tuple(range(end + 1, end + 101)), values={"loss": (999.0,) * 100},
    )  # fmt: skip
    followed = replace(healed, curves=(undone, again))
    assert spent_by(followed) == spent_by(replace(healed, curves=(first,)))
    seen = body(followed)["evidence"]["peaks"]["grad_norm"]
    assert seen["value"] < 999.0
    assert healed.incident.onset_step <= seen["step"] <= end
    row = rf"\| grad norm \| .*\| {seen['value']:.4g} \| step {seen['step']:,} \|"
    assert re.search(row, markdown(followed))


def test_what_closed_as_healed_and_stays_above_its_trend_is_not_said_to_have_come_back(
    healed: PostMortem,
) -> None:
    """By a mean of 100 steps, which sees a tenth of what one step does; not by its noise."""
    closed, trend = healed.incident.closed_step, healed.incident.trend
    assert closed is not None
    assert trend is not None

    def lifted(by: float) -> PostMortem:
        curve = healed.curves[0]
        losses = [
            value if step <= closed else trend.at(step) + by
            for step, value in zip(curve.steps, curve.values["loss"], strict=True)
        ]
        values = {**curve.values, "loss": tuple(losses)}
        return replace(healed, curves=(replace(curve, values=values),))

    stays = markdown(lifted(0.1))
    assert "It was closed: healed by itself, but the loss stays above its trend." in stays
    assert re.search(r"Steps \d+ to \d+ lie 0\.1\d* ± 0\.\d+ nats above the trend\.", stays)
    assert "It was closed: healed by itself. " not in stays
    assert "It was closed: healed by itself.\n" in markdown(lifted(0.005))
    assert re.search(r"Steps \d+ to \d+ lie below the trend\.", markdown(lifted(-0.5)))
    no_digit_of_noise = r"be told \([+-]0\.0+ ± 0\.\d+ nats"
    assert re.search(no_digit_of_noise, markdown(lifted(1e-5)))


def test_a_loss_that_climbs_is_not_said_to_have_been_at_its_peak_at_the_onset(
    broken: PostMortem,
) -> None:
    peak = broken.incident.peak_step
    assert peak > 440
    assert f", and was not finite: onset at step 401, peak at step {peak}, detected at step " in (
        markdown(words(broken))
    )


def test_of_a_gradient_that_was_not_finite_no_loss_is_said_to_have_risen(
    healed: PostMortem,
) -> None:
    trend = healed.incident.trend
    assert trend is not None
    incident = replace(
        healed.incident, signal="grad_norm", worst_z={"grad_norm": math.inf},
        first_moves={"grad_norm": healed.incident.onset_step}, pre_loss=2.177,
        peak_loss=trend.at(healed.incident.peak_step) - 0.1,
    )  # fmt: skip
    said = markdown(replace(healed, incident=incident))
    assert "A gradient was not finite; the loss did not rise: onset at step 401, detected" in said
    assert "loss rose from" not in said
    assert "such spikes heal" not in said  # the agent kept the update out of the weights


def test_a_rate_that_rises_while_it_is_open_and_steps_that_never_came_are_told(
    healed: PostMortem,
) -> None:
    curve, onset = healed.curves[0], healed.incident.onset_step
    rates = tuple(3e-4 if step < onset + 10 else 9e-4 for step in curve.steps)
    raised = replace(curve, values={**curve.values, "lr": rates})
    said = markdown(replace(healed, curves=(raised,), commands=()))
    rose = f"rose from 0.0003 to 0.0009 at step {onset + 10}, while the incident was open"
    assert f"The learning rate {rose}." in said
    assert "The learning rate rose" not in markdown(healed)
    left = [i for i, step in enumerate(curve.steps) if not onset + 10 <= step < onset + 30]
    values = {name: tuple(column[i] for i in left) for name, column in curve.values.items()}
    lost = replace(curve, steps=tuple(curve.steps[i] for i in left), values=values)
    said = markdown(replace(healed, curves=(lost,)))
    assert f"Of steps {onset + 10} to {onset + 29} no sample is known." in said


def test_of_updates_dropped_for_a_loss_that_was_not_finite_no_loss_is_called_calm(
    rolled_back: PostMortem,
) -> None:
    stuck = replace(
        rolled_back.incident, peak_loss=None,
        worst_z={"loss": math.inf, "update_dropped": math.inf},
    )  # fmt: skip
    losses = tuple(math.nan for _ in rolled_back.curves[0].steps)
    curve = replace(rolled_back.curves[0], values={**rolled_back.curves[0].values, "loss": losses})
    facts = replace(rolled_back, incident=stuck, curves=(curve, *rolled_back.curves[1:]))
    said = markdown(facts)
    assert "Update after update was dropped; the loss was not finite: onset at step" in said
    assert "did not rise" not in said


def test_ranks_that_are_equal_again_are_said_once_and_no_loss_to_have_come_back(
    rolled_back: PostMortem,
) -> None:
    trend = rolled_back.incident.trend
    assert trend is not None
    apart = replace(
        rolled_back.incident, signal="replicas_apart", worst_z={"replicas_apart": 1.0},
        peak_loss=trend.at(rolled_back.incident.peak_step), excess=0.0,
    )  # fmt: skip
    said = markdown(replace(rolled_back, incident=apart)).split("# Appendix")[0]
    assert "came back" not in said
    assert said.count("held the same weights") + said.count("hold the same weights") == 1


def test_a_page_that_decides_does_without_a_picture_that_cannot_be_drawn(
    rolled_back: PostMortem,
) -> None:
    words: Any = {"loss": ("x",) * 99}
    bent = replace(rolled_back.curves[-1], values=words)
    picture = IncidentPicture(rolled_back.run, rolled_back.incident, (bent,), ())
    assert incident_image(picture) == b""


def test_a_loss_of_exactly_0_is_called_so_also_after_it_came_back() -> None:
    run, losses = Monitor(), [3.0, 2.9, 3.1, 3.0] * 50 + [0.0] * 20 + [3.0, 3.2] * 5
    record: Incident | None = None
    told = set()
    for step, loss in enumerate(losses, start=1):
        for event in run.observe([Sample(step, {"loss": loss}, None)]):
            record = fold(record, event, number=1, segment=SegmentId("a" * 16, 0))
            assert record is not None
            told.add((heading_of(record), summary_of(record)))
    assert told == {("loss of exactly 0", "The loss was exactly 0")}


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")
def test_losses_that_no_axis_can_hold_are_marked_and_the_rest_is_drawn(healed: PostMortem) -> None:
    """A loss may be as large as a float can be."""
    first, *rest = healed.curves
    values = {**first.values, "loss": (1e308, -1e308, *first.values["loss"][2:])}
    curves = (replace(first, values=values), *rest)
    page = html(replace(healed, curves=curves, incident=replace(healed.incident, peak_loss=1e308)))
    assert "<svg" in page
    assert "not finite" in page
