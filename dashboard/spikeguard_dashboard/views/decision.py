"""The proposed command, what it would cost, and the decision on it.

Law: a decision names the revision that was on the screen when the button was pressed, never one
that was fetched since: the button's arguments are bound when it is drawn, and its key names the
revision, so that a press on an outdated button does nothing. It travels as the person, or not at
all. A press travels once: the key also counts the presses before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from spikeguard_client import ApiError, Command, IncidentDetail
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Html
from spikeguard_dashboard.visit import Person, Visit, look
from spikeguard_protocol import RunId
from spikeguard_protocol.phrases import paragraphs

MAX_REASON = 2000
JUST_DECIDED = ("approved", "rejected")  # later states say more than what was pressed


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of the last press of a button."""

    tone: str
    message: str
    remedy: str = ""


def decide(visit: Visit, run: RunId, incident: int, proposal: Command) -> None:
    """The proposal with its buttons."""
    halted = _halted(visit, run)
    st.html(markup.block(_proposal(proposal), _switch(run) if halted else markup.EMPTY))
    _say_notice(proposal["incident"])
    if visit.person and visit.person.may_decide:
        _buttons(visit, visit.person, run, incident, proposal, halted=halted)
    else:
        st.html(markup.block(_decide_there(visit, run, incident, proposal)))
    st.html(markup.block(_other_ways(visit, run, incident, proposal)))


def _halted(visit: Visit, run: RunId) -> bool:
    """Whether the kill switch is on; where nobody can tell, the server refuses what it must."""
    policy = look(f"policy {run}", lambda: visit.client.run_policy(visit.token, run)).data
    return policy is not None and bool(policy["policy"].get("halted"))


def _switch(run: RunId) -> Html:
    return markup.card(
        "warn",
        markup.paragraph(f"The kill switch of project {run.project} is on.", "order"),
        markup.paragraph("Nothing can be approved until an admin lifts it; rejecting works."),
    )


def _proposal(proposal: Command) -> Html:
    name = f"Proposed command {proposal['id']}, revision {proposal['revision']}"
    return markup.card(
        "ask",
        markup.joined(markup.soft(name), _waits(proposal)),
        markup.paragraph(words.command(proposal["verb"], proposal["arguments"]), "order"),
        _why(proposal),
        *(markup.paragraph(f"Check first: {check}") for check in proposal["checks"]),
        _approvers(proposal),
        _cost(proposal),
        markup.paragraph(markup.soft(words.expiry(proposal)), "expiry"),
        _before(proposal),
    )


def _why(proposal: Command) -> Html:
    said = paragraphs(proposal["reason"])
    return markup.joined(markup.paragraph(markup.soft("Why")), markup.bullets(said), gap="")


def _waits(proposal: Command) -> Html:
    return markup.chip("waiting", words.COMMAND_STATE[proposal["state"]])


def _approvers(proposal: Command) -> Html:
    said = words.approvers(proposal)
    return markup.paragraph(said, "order") if said else markup.EMPTY


def _cost(proposal: Command) -> Html:
    amounts = words.cost(proposal["cost"])
    if not amounts:
        return markup.paragraph("Costs no training.")
    return markup.joined(
        markup.paragraph("Approving it costs"),
        markup.facts((unit, amount) for amount, unit in amounts),
        markup.paragraph(markup.soft(words.waiting_cost(proposal["cost"]))),
        gap="",
    )


def _before(proposal: Command) -> Html:
    """What was proposed before, since the night shift may remember that."""
    earlier = [r for r in proposal["revisions"] if r["number"] < proposal["revision"]]
    if not earlier:
        return markup.EMPTY
    last = max(earlier, key=lambda revision: revision["number"])
    said = words.command(last["verb"], last["arguments"])
    return markup.paragraph(markup.soft(f"Before, revision {last['number']}: {said}"))


def _buttons(
    visit: Visit, person: Person, run: RunId, incident: int, proposal: Command, *, halted: bool
) -> None:
    count = f"pressed {proposal['id']} {proposal['revision']}"
    before = int(st.session_state.get(count, 0))
    seen = f"{proposal['id']} {proposal['revision']} {before}"

    def first() -> bool:
        """Whether this press is new: a slow page may be told of one twice."""
        if st.session_state.get(count, 0) != before:
            return False
        st.session_state[count] = before + 1
        return True

    def approve() -> None:
        decided = first() and _try(
            proposal,
            lambda: visit.client.approve(
                person.signer, run, incident, proposal["number"], proposal["revision"]
            ),
        )
        if decided:
            _notice(proposal, _approved(decided, person.name))

    def reject() -> None:
        reason = str(st.session_state.get(f"reason {proposal['id']}", "")).strip()
        if not reason:
            _notice(proposal, Notice("warn", "Nothing was sent", "Say why, then reject."))
            return
        decided = first() and _try(
            proposal,
            lambda: visit.client.reject(
                person.signer, run, incident, proposal["number"], proposal["revision"], reason
            ),
        )
        if decided:
            _notice(proposal, Notice("calm", f"Rejected by {person.name}: {reason}"))

    yours = words.approved_by(proposal, person.name)
    label = f"Approve revision {proposal['revision']} as {person.name}{_which(proposal)}"
    if yours:
        label = "You gave the first approval; another person gives the second"
    st.button(
        label, type="primary", key=f"approve {seen}", on_click=approve, width="stretch",
        disabled=halted or yours,
    )  # fmt: skip
    with st.popover("Reject with a reason", width="stretch"):
        st.text_area(
            "Reason, kept in the record",
            key=f"reason {proposal['id']}",
            max_chars=MAX_REASON,
            height=90,
        )
        st.button(f"Reject revision {proposal['revision']}", key=f"reject {seen}", on_click=reject)


def _which(proposal: Command) -> str:
    if proposal["approvals"] < 2:
        return ""
    return f", the {'second' if proposal['first_approved_by'] else 'first'} of two"


def _try(proposal: Command, act: Callable[[], Command]) -> Command | None:
    """What became of it; None where that failed, which is said with what to do."""
    try:
        return act()
    except ApiError as error:
        _notice(proposal, refusal(error))
        return None


def _approved(command: Command, name: str) -> Notice:
    if command["state"] == "approved_once":
        return Notice("good", f"Approved by {name}, the first of two.", "Nothing is done yet.")
    return Notice("good", f"Approved by {command['decided_by']}. The job fetches it next.")


def failure_of(act: Callable[[], object]) -> Notice | None:
    """Do it; what is to be said where that failed."""
    try:
        act()
    except ApiError as error:
        return refusal(error)
    return None


def refusal(error: ApiError) -> Notice:
    """Why a decision was not taken, in words that lead on."""
    if error.code == "revision_changed":
        newer = error.current
        said = words.command(newer["verb"], newer["arguments"]) if newer else ""
        name = f"revision {newer['revision']}: {said}" if newer else "a newer revision."
        return Notice(
            "warn",
            "Nothing was done: the proposal had changed",
            f"It is now {name} Look at it again and decide anew.",
        )
    if error.status == 401:
        return Notice("warn", "Nothing was done: your session has ended", "Sign in again.")
    return Notice("warn", f"Nothing was done: {error.message}", error.remedy)


def _notice(proposal: Command, notice: Notice) -> None:
    st.session_state[f"notice {proposal['incident']}"] = notice


def _say_notice(incident: str) -> None:
    """What became of the last press, in a place that is kept (a popover that moves closes)."""
    place = st.empty()
    notice = st.session_state.get(f"notice {incident}")
    if isinstance(notice, Notice):
        said = (
            markup.paragraph(notice.message.rstrip(".") + ".", "order"),
            markup.paragraph(notice.remedy),
        )
        place.html(markup.block(markup.card(notice.tone, *said)))


def decided(proposal: Command | None, run: RunId, incident: IncidentDetail, visit: Visit) -> None:
    """No decision is asked for: say where the newest command stands, and how to order one."""
    if proposal is None or proposal["state"] in JUST_DECIDED:
        _say_notice(incident["id"])
    order = markup.EMPTY if incident["state"] == "closed" else _order(visit, run)
    if proposal is None:
        none = markup.card("calm", markup.paragraph("There is no command to decide on."))
        st.html(markup.block(none, order))
        return
    st.html(markup.block(_newest(proposal, visit), order))


def _order(visit: Visit, run: RunId) -> Html:
    """Where somebody orders what nobody proposed."""
    page = markup.act_address(visit.settings.public_url, run)
    return markup.paragraph(
        markup.joined(markup.soft("Order something on"), markup.link("the page to act", page))
    )


def _newest(proposal: Command, visit: Visit) -> Html:
    """A command that is answered, and what came of it."""
    state = markup.chip(proposal["state"], words.COMMAND_STATE.get(proposal["state"]))
    order = markup.paragraph(words.command(proposal["verb"], proposal["arguments"]), "order")
    ended = proposal["judgement"] or proposal["result"] or proposal["end_reason"] or ""
    said = (
        markup.paragraph(words.sentences(f"{ended[:1].upper()}{ended[1:]}"))
        if ended
        else markup.EMPTY
    )
    name = markup.soft(f"Command {proposal['id']}")
    return markup.card("calm", markup.joined(name, state), order, _by(proposal, visit), said)


def _by(command: Command, visit: Visit) -> Html:
    if not command["decided_by"]:
        return markup.EMPTY
    verb = "Rejected" if command["state"] == "rejected" else "Approved"
    why = f": {command['decision_reason']}" if command["decision_reason"] else ""
    when = words.clock(command["decided_at"], visit.zone)
    return markup.paragraph(f"{verb} by {command['decided_by']}, {when}{why}")


def _decide_there(visit: Visit, run: RunId, incident: int, proposal: Command) -> Html:
    """The server's page, where people decide in their own name: the dashboard only reads."""
    page = markup.confirm_address(visit.settings.public_url, run, incident, proposal["number"])
    decide = markup.link("Approve or reject on the server's page", page)
    return markup.paragraph(markup.joined(decide, "A decision carries your name."))


def _other_ways(visit: Visit, run: RunId, incident: int, proposal: Command) -> Html:
    page = markup.confirm_address(visit.settings.public_url, run, incident, proposal["number"])
    return markup.paragraph(
        markup.joined(
            markup.soft("Also:"),
            markup.link("the server's own page", page),
            markup.soft("or"),
            markup.code(f"spikeguard approve '{proposal['id']}'"),
            markup.soft("or change it on"),
            markup.link("the page to act", markup.act_address(visit.settings.public_url, run)),
        )
    )
