"""Every call that the server takes."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from spikeguard_server.http.routes import (
    act_pages,
    audit,
    channels,
    commands,
    health,
    inbox,
    incident_pages,
    incidents,
    interventions,
    links,
    messages,
    notes,
    oidc,
    openapi_document,
    pages,
    policy,
    responses,
    run_list,
    run_policy,
    runs,
    scrape,
    sessions,
    silences,
    tokens,
)

ROUTERS: tuple[APIRouter, ...] = (
    messages.router,
    run_list.router,
    runs.router,
    audit.router,
    notes.router,
    interventions.router,
    inbox.router,
    incidents.router,
    responses.router,
    commands.router,
    policy.router,
    run_policy.router,
    channels.router,
    silences.router,
    sessions.router,
    tokens.router,
    oidc.router,  # before the links, whose path takes any word
    pages.router,
    incident_pages.router,
    act_pages.router,
    links.router,
    scrape.router,
    health.router,
    openapi_document.router,
)


def include_all(app: FastAPI) -> None:
    """Let `app` take every call."""
    for router in ROUTERS:
        app.include_router(router)
