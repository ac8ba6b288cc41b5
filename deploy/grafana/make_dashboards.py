"""The three Grafana dashboards as code: fleet, one run, on call.

    python deploy/grafana/make_dashboards.py

writes `dashboards/*.json`, which Grafana is provisioned with; a test holds that both agree. Law:
every panel says what it shows and reads the one provisioned data source; queries ask only for what
the server tells (docs/alerts.md, "Grafana").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as models

PLACE = Path(__file__).with_name("dashboards")
SOURCE = models.DataSourceRef(type_val="prometheus", uid="spikeguard-prometheus")
WIDTH = 24  # columns of Grafana's grid
MESSAGES = 'spikeguard_http_request_duration_seconds_bucket{route="/v1/messages"}'
CALM = {0.0: "transparent"}
WARN = {0.0: "transparent", 1.0: "orange"}
BAD = {0.0: "transparent", 1.0: "red"}
WAITED_S = {0.0: "transparent", 60.0: "orange", 300.0: "red"}  # an alert fires at 300
FIELDS = ("project", "run", "incident")  # of a row: what leads to the incident's page
INCIDENT = "/".join(["${spikeguard:raw}/incident", *(f"${{__data.fields.{f}}}" for f in FIELDS)])
WHICH: dict[str, str] = {  # the runs that a dashboard shows
    "fleet": '{project=~"$project", run=~"$run"}',
    "run": '{project="$project", run="$run"}',
    "on-call": '{project=~".+"}',
}
MARKS = (  # name, event of the series, colour
    ("Spike", "spike", "red"),
    ("Decision", "decision", "blue"),
    ("Rollback", "rollback", "green"),
    ("Command", "command", "green"),
    ("Closed", "close", "gray"),
    ("Note", "note", "purple"),
)
GOOD = {0.0: "red", 1.0: "green"}

HIDDEN = ("Time", "Value", "__name__", "instance", "job")

Panel = Any  # each kind has a builder type of its own, with the same methods


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""

    def target(self, ref: str, *, instant: bool) -> prometheus.Dataquery:
        """The query as a panel asks it."""
        made = prometheus.Dataquery().ref_id(ref).datasource(SOURCE)
        made = made.expr(self.expr).legend_format(self.legend)
        return made.instant() if instant else made.range()


def _panel(
    made: Panel, title: str, about: str, size: tuple[int, int], queries: Sequence[Query],
    *, instant: bool = False,
) -> Panel:  # fmt: skip
    made = made.title(title).description(about).datasource(SOURCE).span(size[0]).height(size[1])
    for number, query in enumerate(queries):
        made = made.with_target(query.target(chr(ord("A") + number), instant=instant))
    return made


def number(
    title: str, about: str, query: str, limits: dict[float, str], width: int = 4,
    unit: str = "none",
) -> Panel:  # fmt: skip
    """One number, as it is now; coloured from the limits on."""
    steps = [
        models.Threshold(value=limit or None, color=color)
        for limit, color in sorted(limits.items())
    ]
    shown = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    made = _panel(stat.Panel(), title, about, (width, 4), [Query(query)], instant=True)
    return (
        made.unit(unit)
        .no_value("none")
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .color_mode(words.BigValueColorMode.BACKGROUND)
        .graph_mode(words.BigValueGraphMode.NONE)
        .justify_mode(words.BigValueJustifyMode.CENTER)
        .text_mode(words.BigValueTextMode.VALUE)
        .reduce_options(shown)
    )


def lines(
    title: str, about: str, *queries: Query, width: int = 12, height: int = 8, unit: str = "none"
) -> Panel:
    """Curves over time. A hole stays a hole: nothing was measured there."""
    legend = common.VizLegendOptions().show_legend(True)
    legend = legend.display_mode(words.LegendDisplayMode.LIST)
    tooltip = common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI)
    return (
        _panel(timeseries.Panel(), title, about, (width, height), queries)
        .unit(unit)
        .legend(legend.placement(words.LegendPlacement.BOTTOM))
        .tooltip(tooltip.sort(words.SortOrder.DESCENDING))
        .draw_style(words.GraphDrawStyle.LINE)
        .line_width(1)
        .fill_opacity(0)
        .show_points(words.VisibilityMode.NEVER)
        .span_nulls(False)
    )


def states(title: str, about: str, query: Query, calm: str, bad: str, width: int = 12) -> Panel:
    """When something was so: 0 and 1 over time."""
    mapping = models.ValueMap(
        {
            "0": models.ValueMappingResult(text=calm, color="transparent", index=0),
            "1": models.ValueMappingResult(text=bad, color="red", index=1),
        }
    )
    return (
        _panel(statetimeline.Panel(), title, about, (width, 8), [query])
        .mappings([mapping])
        .show_value(words.VisibilityMode.NEVER)
        .merge_values(True)
        .fill_opacity(80)
        .line_width(0)
        .legend(common.VizLegendOptions().show_legend(False))
    )


def listing(
    title: str,
    about: str,
    query: str,
    hidden: Sequence[str],
    width: int = 12,
    height: int = 8,
) -> Panel:
    """One row a series, with its labels; its cells lead to the incident's page."""
    kept = models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": dict.fromkeys(hidden, True)}
    )
    made = _panel(table.Panel(), title, about, (width, height), [Query(query)], instant=True)
    for target in made._internal.targets or []:
        target.format_val = "table"
    link = dashboard.DashboardLink("Open the incident").url(INCIDENT).target_blank(True)
    return made.with_transformation(kept).data_links([link])


def _variable(name: str, label: str, values: str, *, several: bool) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
    made = made.query({"query": f"label_values({values}, {name})", "refId": "variable"})
    made = made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made = made.sort(models.VariableSort.ALPHABETICAL_ASC).multi(several).include_all(several)
    return made.all_value(".*") if several else made


def _address() -> dashboard.QueryVariable:
    """Where people reach the server, as it tells Prometheus; nobody has to choose it."""
    made = dashboard.QueryVariable("spikeguard").datasource(SOURCE)
    values = "label_values(spikeguard_server_info, public_url)"
    made = made.query({"query": values, "refId": "variable"})
    made = made.refresh(models.VariableRefresh.ON_DASHBOARD_LOAD)
    return made.hide(models.VariableHide.HIDE_VARIABLE)


def _quantiles(
    title: str, about: str, name: str, which: str, by: str = "", unit: str = "s"
) -> Panel:
    """Half of the incidents that have closed, and 9 of 10, took no longer."""
    grouped = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    found = f"sum by ({grouped}) ({name}_bucket{which})"
    queries = [
        Query(f"histogram_quantile({share}, {found})", f"{word}{legend}")
        for share, word in ((0.5, "p50"), (0.9, "p90"))
    ]
    about = f"{about} Over all closed spikes: half of them and 9 of 10 took no longer."
    return lines(title, about, *queries, width=8, height=6, unit=unit)


def _costs(title: str, about: str, kind: str, by: str, which: str, unit: str = "none") -> Panel:
    """What was lost and saved since the beginning."""
    queries = [
        Query(f"sum by ({by}) (spikeguard_{word}_{kind}_total{which})", f"{word} {{{{{by}}}}}")
        for word in ("lost", "saved")
    ]
    return lines(title, about, *queries, width=8, height=6, unit=unit)


def _marks(which: str) -> list[dict[str, Any]]:
    """Marks on every graph: what the server says happened, at the moment at which it did.

    As plain JSON: the SDK knows no title, tags or values as times of a query of Prometheus."""
    series = f"spikeguard_run_event_timestamp_seconds{which}"
    return [
        {
            "name": name,
            "datasource": {"type": SOURCE.type_val, "uid": SOURCE.uid},
            "enable": True,
            "hide": False,
            "iconColor": color,
            "expr": f'1000 * {series[:-1]}, event=~"{event}"}}',
            "step": "15s",
            "titleFormat": f"{name}: {{{{subject}}}}",
            "textFormat": "{{text}} ({{project}}/{{run}})",
            "tagKeys": "project,run,event",
            "useValueForTime": "on",
        }
        for name, event, color in MARKS
    ]


def _board(name: str, title: str, about: str, panels: Sequence[Panel]) -> dashboard.Dashboard:
    links = dashboard.DashboardLink("spikeguard").type(models.DashboardLinkType.DASHBOARDS)
    made = (
        dashboard.Dashboard(title)
        .uid(f"spikeguard-{name}")
        .description(about)
        .tags(["spikeguard"])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .link(links.tags(["spikeguard"]).as_dropdown(True).include_vars(True).keep_time(True))
    )
    for place, panel in enumerate(panels, 1):
        made = made.with_panel(panel.id(place))
    return made


def fleet() -> dashboard.Dashboard:
    """Every live run, what is wrong with it, and what waits for a person."""
    which, name = WHICH["fleet"], "{{project}}/{{run}}"
    of = '{project=~"$project"}'
    panels = [
        number("Live runs", "Runs that sent a message lately.",
               'sum(spikeguard_runs{state="live"}) or vector(0)', CALM),
        number("Silent runs", "Runs that stopped sending without saying that they ended.",
               'sum(spikeguard_runs{state="silent"}) or vector(0)', WARN),
        number("Open spikes", "Incidents that have not closed.",
               "sum(spikeguard_incidents_open) or vector(0)", BAD),
        number("Approvals waiting", "Proposed commands that wait for a person.",
               "sum(spikeguard_approvals_waiting) or vector(0)", WARN),
        number("Oldest approval", "How long the oldest of them has waited.",
               "max(spikeguard_approval_oldest_age_seconds) or vector(0)", WAITED_S, unit="s"),
        number("Scrapes answered", "All scrapes of the server, as a share; 100 % when all is well.",
               'avg(up{job=~"spikeguard-.*"})', GOOD, unit="percentunit"),
        lines("Loss", "Nats at the newest step. NaN and infinities leave a gap here; the run's "
              "dashboard shows when.", Query(f"spikeguard_run_loss_nats{which}", name),
              height=9),
        lines("Gradient norm", "Global L2 norm before clipping, at the newest step.",
              Query(f"spikeguard_run_grad_norm{which}", name), height=9),
        states("Open spikes", "When each run had a spike open.",
               Query(f"spikeguard_run_incident_open{which}", name), "calm", "spike"),
        lines("Speed", "Tokens a second of each run.",
              Query(f"spikeguard_run_tokens_per_second{which}", name)),
        lines("Spikes by kind", "Open and closed, since the beginning.",
              Query("sum by (kind) "
                    "(spikeguard_incidents_open or spikeguard_incidents_closed_total)",
                    "{{kind}}"), width=8),
        lines("Commands by state", "All commands, since the beginning.",
              Query("sum by (verb, state) "
                    "(spikeguard_commands_unfinished or spikeguard_commands_finished_total)",
                    "{{verb}} {{state}}"), width=8),
        lines("Age of data", "Seconds since each run's newest message.",
              Query(f"spikeguard_run_data_age_seconds{which}", name), width=8, unit="s"),
        lines("Samples stored", "Samples a second, by server process.",
              Query("sum by (instance) (rate(spikeguard_ingest_samples_total[1m]))",
                    "{{instance}}"), width=8),
        lines("Messages", "Messages a second by what became of them.",
              Query("sum by (result) (rate(spikeguard_ingest_messages_total[1m]))", "{{result}}"),
              width=8),
        _latency(8),
        _quantiles("Detection delay", "Optimizer steps from onset to detection.",
                   "spikeguard_detection_delay_steps", of, unit="none"),
        _quantiles("Time to detect", "Training time from onset to detection.",
                   "spikeguard_detection_delay_seconds", of),
        _quantiles("Time to decide", "From the first proposal to the first decision, by person or "
                   "policy.", "spikeguard_decision_delay_seconds", of, by="by"),
        _quantiles("Time to recover", "From onset to close: healed by itself, or recovered after a "
                   "command.", "spikeguard_recovery_duration_seconds", of, by="outcome"),
        _quantiles("Steps to recover", "The same in optimizer steps.",
                   "spikeguard_recovery_duration_steps", of, by="outcome", unit="none"),
        _costs("Steps lost and saved", "By closed spikes, since the beginning; saved: that a "
               "restart from disk would have trained again.", "steps", "project", of),
        _costs("Training time lost and saved", "That these steps took.", "seconds", "project", of,
               unit="s"),
        _costs("Money lost and saved", "The price of these steps, of projects whose policy sets "
               "one.", "money", "currency", of),
        listing("Open spikes by kind", "A click opens the incident.",
                f"spikeguard_run_incident_info{which}", HIDDEN, width=8, height=6),
    ]  # fmt: skip
    about = "Every live run, what is wrong with it, and what waits for a person."
    made = _board("fleet", "spikeguard: fleet", about, panels)
    return _narrowed(made, several=True)


def _latency(width: int) -> Panel:
    quantiles = ((0.5, "p50"), (0.99, "p99"))
    return lines(
        "Time to answer a message",
        "Of POST /v1/messages: half of them and 99 of 100 are faster.",
        *[
            Query(f"histogram_quantile({share}, sum by (le) (rate({MESSAGES}[1m])))", name)
            for share, name in quantiles
        ],
        width=width,
        unit="s",
    )


def run() -> dashboard.Dashboard:
    """One run: how it trains, and what it went through."""
    which = WHICH["run"]
    panels = [
        number("Step", "The newest optimizer step.", f"spikeguard_run_last_step{which}", CALM),
        number("Loss", "Nats at the newest step.", f"spikeguard_run_loss_nats{which}", CALM),
        number("Gradient norm", "Global L2 norm before clipping.",
               f"spikeguard_run_grad_norm{which}", CALM),
        number("Speed", "Tokens a second.", f"spikeguard_run_tokens_per_second{which}", CALM),
        number("Age of data", "Since the newest message; a run counts as silent after 60 s.",
               f"spikeguard_run_data_age_seconds{which}",
               {0.0: "transparent", 30.0: "orange", 60.0: "red"}, unit="s"),
        number("Spike open", "1 while an incident of this run has not closed.",
               f"spikeguard_run_incident_open{which}", BAD),
        lines("Loss", "Nats at the newest step. NaN and infinities leave a gap.",
              Query(f"spikeguard_run_loss_nats{which}", "loss"), height=10),
        lines("Gradient norm", "Global L2 norm before clipping.",
              Query(f"spikeguard_run_grad_norm{which}", "gradient norm"), height=10),
        lines("Deviation of the loss", "How many robust deviations the newest loss lies above its "
              "trend; a calm run stays within 3 or so.",
              Query(f"spikeguard_run_z{which}", "deviations")),
        lines("Deviation of your own signals", "Those that the policy names, in the direction that "
              "it names, in robust deviations off their baseline.",
              Query(f"spikeguard_run_signal_z{which}", "{{signal}}")),
        states("Open spikes", "When this run had a spike open.",
               Query(f"spikeguard_run_incident_open{which}", "spike"), "calm", "spike"),
        states("Loss not finite", "When the newest loss was NaN or infinite.",
               Query(f"spikeguard_run_loss_non_finite{which}", "loss"), "finite", "NaN, inf"),
        listing("The open spike", "A click opens the incident.",
                f"spikeguard_run_incident_info{which}", HIDDEN),
        lines("Progress", "Optimizer steps a minute; below zero where a rollback took it back.",
              Query(f"delta(spikeguard_run_last_step{which}[1m])", "steps a minute")),
        lines("Speed", "Tokens a second.",
              Query(f"spikeguard_run_tokens_per_second{which}", "tokens/s")),
        lines("Age of data", "Seconds since the newest message.",
              Query(f"spikeguard_run_data_age_seconds{which}", "age"), unit="s"),
    ]  # fmt: skip
    about = "One run: how it trains, and when it spiked. The incident's own page shows every step."
    made = _board("run", "spikeguard: run", about, panels)
    return _narrowed(made, several=False)


def _narrowed(made: dashboard.Dashboard, *, several: bool) -> dashboard.Dashboard:
    """With a choice of project and run, or of several of each."""
    match = "=~" if several else "="
    runs = f'spikeguard_run_last_step{{project{match}"$project"}}'
    project = _variable("project", "Project", "spikeguard_run_last_step", several=several)
    run = _variable("run", "Run", runs, several=several)
    made = made.with_variable(_address())
    return made.with_variable(project).with_variable(run)


def on_call() -> dashboard.Dashboard:
    """What a person on call looks at first: what fires, what waits, what failed."""
    fires = 'ALERTS{alertstate="firing", severity!="none"}'
    failed = ('sum by (verb, state) (spikeguard_commands_finished_total{state=~"failed|refused"} '
              'or spikeguard_commands_unfinished{state="unknown"})')  # fmt: skip
    spiking = "on (project, run) (spikeguard_run_incident_open == 1)"
    panels = [
        number("Critical alerts", "Alerts that fire and should wake somebody.",
               'count(ALERTS{alertstate="firing", severity="critical"}) or vector(0)', BAD),
        number("Divergent spikes", "Open spikes that do not come back by themselves.",
               'sum(spikeguard_incidents_open{kind="divergent"}) or vector(0)', BAD),
        number("Approvals waiting", "Proposed commands that wait for a person.",
               "sum(spikeguard_approvals_waiting) or vector(0)", WARN),
        number("Oldest approval", "How long the oldest of them has waited; it expires to nothing.",
               "max(spikeguard_approval_oldest_age_seconds) or vector(0)", WAITED_S, unit="s"),
        number("Silent runs", "Runs that stopped sending without saying that they ended.",
               'sum(spikeguard_runs{state="silent"}) or vector(0)', WARN),
        number("Time is driven", "Replicas whose ticker runs; with none, nothing expires and no "
               "silence is noticed.", "sum(spikeguard_ticker_up) or vector(0)", GOOD),
        states("Alerts", "What fired when; docs/alerts.md says what to do about each.",
               Query(f"max by (alertname) ({fires})", "{{alertname}}"), "calm", "fires"),
        listing("Runs with an open spike", "A click opens the incident.",
                "spikeguard_run_incident_info == 1", HIDDEN),
        lines("Loss of spiking runs", "Nats, of the runs with an open spike.",
              Query(f"spikeguard_run_loss_nats and {spiking}", "{{project}}/{{run}}")),
        lines("Gradient norm of spiking runs", "Global L2 norm before clipping.",
              Query(f"spikeguard_run_grad_norm and {spiking}", "{{project}}/{{run}}")),
        lines("Commands that were not carried out", "Refused, failed, or without a result.",
              Query(failed, "{{verb}} {{state}}"), width=8),
        lines("Answers that were errors", "Requests a second that the server refused or failed.",
              Query('sum by (status) (rate(spikeguard_http_requests_total{status=~"[45].."}[5m]))',
                    "{{status}}"), width=8),
        lines("Samples dropped by agents", "By their own count, since the beginning.",
              Query("spikeguard_dropped_samples_total", "samples"), width=8),
        _latency(8),
        lines("Messages that wait", "In each server process; beyond its limit agents are told "
              "to come back.", Query("spikeguard_ingest_waiting", "{{instance}}"), width=8),
        lines("Messages to people", "Sent, held, dropped or failed in the last hour, by kind of "
              "channel.",
              Query("sum by (kind, result) (increase(spikeguard_notifications_total[1h])) > 0 "
                    "or sum(increase(spikeguard_notifications_total[1h]))",
                    "{{kind}} {{result}}"), width=8),
        lines("Messages to people that are late", "How long the oldest has been due.",
              Query("spikeguard_notification_oldest_age_seconds", "oldest"), width=8, unit="s"),
        lines("Scrapes", "1 while an address answers Prometheus.",
              Query('up{job=~"spikeguard-.*"}', "{{job}} {{instance}}"), width=8),
    ]  # fmt: skip
    about = "What fires, what waits for a person, what failed, and whether the server is well."
    return _board("on-call", "spikeguard: on call", about, panels).with_variable(_address())


BOARDS: dict[str, Callable[[], dashboard.Dashboard]] = {
    "fleet": fleet,
    "run": run,
    "on-call": on_call,
}


def text(name: str) -> str:
    """The JSON of one dashboard."""
    board = json.loads(json.dumps(BOARDS[name]().build(), cls=JSONEncoder))
    board["annotations"] = {"list": _marks(WHICH[name])}
    return json.dumps(board, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write all of them."""
    for name in BOARDS:
        (PLACE / f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main()
