"""Every setting of a policy, for forms and other programs."""

from __future__ import annotations

from fastapi import APIRouter

from spikeguard_server.http.bodies.policy_settings import PolicySettings, policy_settings
from spikeguard_server.http.responses import JsonReply

router = APIRouter(tags=["policy"])


@router.get(
    "/v1/policy/settings", summary="Every setting of a policy", response_model=PolicySettings,
    response_class=JsonReply,
)  # fmt: skip
def get_settings() -> JsonReply:
    """With unit, default and range, those of detection and of installed detectors among them."""
    return JsonReply(policy_settings())
