"""Makes what a release uploads, and tries it: `python deploy/release.py --repository URL`.

Works on an export of the commit, so that a working tree's files cannot come along. Uploads nothing:
it prints the commands. Needs `build`, `twine` and `cyclonedx-bom` in the Python that runs it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parent.parent
NAME = "spikeguard"
SECTION = r"^## {version}\b.*\n(?P<text>(?:(?!## ).*\n?)*)"
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)\s]+)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")
IMAGES = ("server", "dashboard")  # extras of which an image is made
LOG = "tests/field_cases/c4_peak_at_step_18.csv"  # one spike


def main() -> int:
    """Run the steps; the first that fails ends it with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", required=True, metavar="URL", help="where the source is")
    parser.add_argument("--index", default="https://pypi.org", metavar="URL")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    options = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if run("git", "status", "--porcelain"):
        sys.exit("the tree is not clean: commit or stash first")
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version)
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        sys.exit(f"CITATION.cff does not say `version: {version}`")
    for line in index_words(options.index, version):
        print(line)
    with tempfile.TemporaryDirectory(prefix="spikeguard-release-") as folder:
        source = Path(folder) / "source"
        export(source)
        for name, made in published(source, options.repository.rstrip("/"), version).items():
            (source / name).write_text(made)
        run(sys.executable, "-m", "build", "--outdir", str(options.out), str(source))
        files = sorted(map(str, options.out.glob(f"{NAME}-{version}*")))
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        wheel = next(file for file in files if file.endswith(".whl"))
        try_wheel(wheel, Path(folder) / "environment", source / LOG)
        for image in IMAGES:
            files += bill(f"{wheel}[{image}]", options.out / f"{NAME}-{image}-{version}")
    (options.out / f"notes-{version}.md").write_text(notes)
    print(f"built and tried: {', '.join(files)}; notes in {options.out}/notes-{version}.md\nnow:")
    print(f"  git tag --sign v{version} && git push origin v{version}")
    uploaded = [file for file in files if file.endswith((".whl", ".tar.gz"))]
    print(f"  {sys.executable} -m twine upload {' '.join(uploaded)}")
    return 0


def notes_of(changelog: str, version: str) -> str:
    """The text of this version's section."""
    found = re.search(SECTION.format(version=re.escape(version)), changelog, re.MULTILINE)
    if found is None or not found["text"].strip():
        sys.exit(f"CHANGELOG.md has no text below `## {version}`")
    return found["text"].strip() + "\n"


def index_words(index: str, version: str) -> list[str]:
    """Who has the name there. Ends the program where the version was uploaded already."""
    request = Request(
        f"{index}/simple/{NAME}/", headers={"Accept": "application/vnd.pypi.simple.v1+json, */*"}
    )
    try:
        with urlopen(request, timeout=30) as answer:
            listed = answer.read().decode()
    except HTTPError as error:
        if error.code == 404:
            return [f"{index} has no {NAME}: this upload takes the name, or somebody else may"]
        raise
    if f"{NAME}-{version}-" in listed or f"{NAME}-{version}.tar" in listed:
        sys.exit(f"{index} has {NAME} {version}: a version is uploaded once, take the next number")
    return [f"{index} has {NAME}: make sure that the project there is ours before you upload"]


def export(folder: Path) -> None:
    """The commit's files in `folder`."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")


def published(source: Path, repository: str, version: str) -> dict[str, str]:
    """README and pyproject.toml as the package carries them: with whole addresses."""
    readme = (source / "README.md").read_text()
    readme = PICTURE.sub(rf"![\1]({repository}/raw/v{version}/\2)", readme)
    readme = LINK.sub(rf"]({repository}/blob/v{version}/\1)", readme)
    urls = (
        f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n'
        f'Documentation = "{repository}/blob/v{version}/README.md#read-on"\n'
        f'Changelog = "{repository}/blob/v{version}/CHANGELOG.md"\n\n'
    )
    project = (source / "pyproject.toml").read_text()
    mark = "[project.scripts]\n"
    return {"README.md": readme, "pyproject.toml": project.replace(mark, urls + mark, 1)}


def try_wheel(wheel: str, environment: Path, log: Path) -> None:
    """The wheel and numpy alone, in a new environment, find the spike of a log."""
    python = environment / "bin/python"
    run(sys.executable, "-m", "venv", str(environment))
    run(str(python), "-m", "pip", "install", "--quiet", f"{wheel}[replay]")
    said = run(str(python.with_name(NAME)), "replay", str(log))
    if "1 incident" not in said:
        sys.exit(f"the wheel's replay does not see the spike:\n{said}")


def bill(wanted: str, stem: Path) -> list[str]:
    """What an image installs: a file of pins with hashes, and of that a CycloneDX bill."""
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    report = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
        "--only-binary", ":all:", "--report", "-", *constraints, wanted,
    )  # fmt: skip
    hashed = Path(f"{stem}-requirements.txt")
    hashed.write_text(hashed_pins(json.loads(report)["install"]))
    sbom = f"{stem}.cdx.json"
    run(sys.executable, "-m", "cyclonedx_py", "requirements", "--output-file", sbom, str(hashed))
    return [str(hashed), sbom]


def hashed_pins(installed: Sequence[Mapping[str, Any]]) -> str:
    """Of pip's report, a line a package; of what was built here nothing."""
    lines = [
        f"{one['metadata']['name']}=={one['metadata']['version']} --hash=sha256:{found}"
        for one in installed
        if one["metadata"]["name"] != NAME
        and (found := one["download_info"]["archive_info"]["hashes"]["sha256"])
    ]
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


def run(*command: str) -> str:
    """What `command` prints; its failure ends the program with what it said."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
