"""The page of the API: no other script, and no file that it does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from tests.server.face.conftest import Live


def test_the_page_lets_no_other_script_run(live: Live) -> None:
    headers = httpx.get(f"{live.url}/docs", timeout=120).headers
    policy = headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "connect-src" not in policy  # so default-src holds
    assert "default-src 'none'" in policy
    assert headers["x-frame-options"] == "DENY"


def test_a_file_that_the_page_does_not_load_is_not_there(live: Live) -> None:
    assert httpx.get(f"{live.url}/docs/redoc.standalone.js", timeout=120).status_code == 404
