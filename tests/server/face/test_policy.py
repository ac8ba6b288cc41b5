"""The policy and the kill switch, by the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spikeguard_protocol import Role

if TYPE_CHECKING:
    from tests.server.face.conftest import Live


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ('{"watch_steps": ' + "9" * 400 + "}", "watch_steps"),
        ('{"price_per_hour": ' + "9" * 400 + "}", "price_per_hour"),
        ('{"lr_factors": [0.1, ' + "9" * 400 + "]}", "lr_factors"),
        ('{"quiet": {"begin": 7}}', "quiet.begin"),
    ],
)
def test_what_is_wrong_in_a_policy_is_named(live: Live, policy: str, field: str) -> None:
    with live.client(Role.ADMIN) as admin:
        body = f'{{"project": "of-files", "policy": {policy}}}'
        answer = admin.put("/v1/policy", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["field"] in (field, "body")
