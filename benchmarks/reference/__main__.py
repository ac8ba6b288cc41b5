"""Writes every page of docs/reference, and the types of the Python client."""

from benchmarks.reference import client_shapes, policy_meanings
from benchmarks.reference.pages import FOLDER, PAGES

FOLDER.mkdir(exist_ok=True)
for name, make in PAGES.items():
    (FOLDER / name).write_text(make())
policy_meanings.FILE.write_text(policy_meanings.module())
client_shapes.FILE.write_text(client_shapes.module())
