"""`python -m tests.promises`: whether the test of each promise fails once the promise is broken.

Works in a copy of the tree with a Python environment of its own, so nothing here changes. All tests
run once as they are; then each break of `breaks.py` is made, its test is run, and the file is put
back. Exit status 1 where a test passed although its promise was broken. Nightly: it takes minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import suppress
from pathlib import Path

from tests.promises.breaks import BREAKS, ROOT, Break, Promise, broken, promises

SOURCES = ("agent", "server", "dashboard", "trainer")
LIMIT_S = 300.0  # one test
PYTEST = ("-m", "pytest", "-x", "-p", "no:cacheprovider", "--timeout", "150")


class Copy:
    """The tree, and a Python that imports from it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        for name in _files():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self._python = self._environment(self.root / ".venv")
        self._changed_at = time.time()

    def _environment(self, home: Path) -> Path:
        """This one's packages behind the copy's own, and its programs with another first line."""
        venv.create(home, symlinks=True)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        own = next(home.glob("lib/python*/site-packages"))
        paths = [str(self.root / source) for source in SOURCES]
        (own / "copy.pth").write_text("\n".join([*paths, *packages]))
        for program in Path(sys.prefix, "bin").iterdir():
            copied = home / "bin" / program.name
            if copied.exists() or not program.is_file():
                continue
            content = program.read_bytes()
            if content.startswith(b"#!"):
                copied.write_bytes(content.replace(sys.prefix.encode(), str(home).encode()))
                copied.chmod(0o755)
            else:
                copied.symlink_to(program)
        return home / "bin" / "python"

    def passes(self, tests: list[str], *options: str) -> tuple[int, str]:
        """The exit status of pytest and what it printed."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPIKEGUARD_")}
        environment.pop("PYTHONPATH", None)
        command = [str(self._python), *PYTEST, *options, *tests]
        limit_s = LIMIT_S * len(tests)
        with tempfile.TemporaryFile("w+") as printed:  # no pipe, which a process left over may hold
            running = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                running.wait(limit_s)
            except subprocess.TimeoutExpired:
                return 1, f"not done within {limit_s:.0f} s"
            finally:
                with suppress(ProcessLookupError):  # what a test that failed has left
                    os.killpg(running.pid, signal.SIGKILL)
            printed.seek(0)
            return running.returncode, printed.read()

    def write(self, name: str, text: str) -> None:
        """Replace a file; each time with a newer date, by which Python knows what to compile."""
        self._changed_at += 2.0
        (self.root / name).write_text(text)
        os.utime(self.root / name, (self._changed_at, self._changed_at))


def _files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    names = listed.stdout.decode().splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def _seen(copy: Copy, promise: Promise, break_: Break) -> str:
    """`seen`, `not seen`, or why nobody can tell."""
    before = (copy.root / break_.file).read_text()
    copy.write(break_.file, broken(break_, before))
    try:
        status, said = copy.passes([promise.test])
    finally:
        copy.write(break_.file, before)
    if status == 0:
        return "NOT SEEN" if " passed" in said else f"cannot tell: {said.splitlines()[-1]}"
    if status == 1 and "error" not in said.splitlines()[-1]:
        return f"seen: {_failure(said)}"
    return f"cannot tell (pytest ended with {status})\n{said[-2000:]}"


def _failure(said: str) -> str:
    """Its first line, so that a person sees that it failed for the break and not for the hour."""
    lines = [line[1:].strip() for line in said.splitlines() if line.startswith("E  ")]
    return (lines or said.splitlines()[-1:])[0][:100]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="of this promise alone")
    options = parser.parse_args()
    chosen = [p for p in promises() if not options.only or p.name in options.only]
    if unknown := set(options.only or ()) - {promise.name for promise in chosen}:
        parser.error(f"docs/promises.md has no {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="promises-") as folder:
        copy = Copy(Path(folder))
        status, said = copy.passes([promise.test for promise in chosen])
        if status != 0:
            print(f"they do not pass as they are:\n{said}")
            return 1
        results: dict[str, str] = {}
        for promise in chosen:
            began = time.monotonic()
            results[promise.name] = _seen(copy, promise, BREAKS[promise.name])
            took_s = time.monotonic() - began
            print(f"{promise.name:28} {took_s:5.1f} s  {results[promise.name]}", flush=True)
    seen = sum(result.startswith("seen") for result in results.values())
    print(f"{seen} of {len(results)} broken promises were seen by their tests")
    return 0 if seen == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
