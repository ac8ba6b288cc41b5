"""Take the README's picture: the page of the demo's incident, with a proposal that waits.

    python -m benchmarks.picture [--out FILE]

Runs `spikeguard demo --approve manual` until it proposes something, and ends it. Needs Chromium.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.browser import browsing

README = Path(__file__).parents[1] / "docs/pictures/incident-1280.png"
WIDTH, HEIGHT, COLOURS = 1280, 900, 128
SETTLED_MS = 2_000  # some more steps than the one that was proposed at


def proposal(demo: subprocess.Popen[str]) -> tuple[str, str]:
    """What the demo prints once something waits: the link that signs in, and the run's name."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(
            r"(http://(\S+)/login/\S+next=%2Fconfirm%2Fdefault%2F([\w-]+))", line
        ):
            return found[1], f"http://{found[2]}/incident/default/{found[3]}/1"
    raise RuntimeError("the demo ended without a proposal")


def picture(directory: str) -> bytes:
    """The page, as a PNG of few colours."""
    words = [sys.executable, "-m", "spikeguard_cli.main", "demo", "--approve", "manual"]
    demo = subprocess.Popen(
        [*words, "--directory", directory], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        link, page = proposal(demo)
        with browsing() as browser:
            tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            tab.goto(link)
            with tab.expect_navigation():
                tab.click("button")  # one GET signs nobody in
            tab.goto(page)
            tab.wait_for_timeout(SETTLED_MS)
            tab.reload()
            shot = Image.open(io.BytesIO(tab.screenshot(full_page=True)))
    finally:
        demo.terminate()
        demo.communicate(timeout=60)
    made = io.BytesIO()
    shot.convert("RGB").quantize(COLOURS).save(made, "PNG", optimize=True)
    return made.getvalue()


def main() -> None:
    """Write the picture."""
    parser = ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("--out", type=Path, default=README)
    options = parser.parse_args()
    with TemporaryDirectory() as directory:
        options.out.write_bytes(picture(directory))


if __name__ == "__main__":
    main()
