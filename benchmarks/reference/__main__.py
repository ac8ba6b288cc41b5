"""Writes every page of docs/reference."""

from benchmarks.reference.pages import FOLDER, PAGES

FOLDER.mkdir(exist_ok=True)
for name, make in PAGES.items():
    (FOLDER / name).write_text(make())
