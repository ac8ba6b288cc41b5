"""Writes every page of docs/reference, and the types of the Python client."""

from benchmarks.reference import client_shapes
from benchmarks.reference.pages import FOLDER, PAGES

FOLDER.mkdir(exist_ok=True)
for name, make in PAGES.items():
    (FOLDER / name).write_text(make())
client_shapes.FILE.write_text(client_shapes.module())
