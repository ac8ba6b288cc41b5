"""The site of README, docs/ and the examples' pages: `make docs`. The order of pages: toc.yml.

Sphinx reads the files where they are, so nothing is copied. A link that leads nowhere fails.
"""

project = "spikeguard"
extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "docs/site/toc.yml"
include_patterns = ["*.md", "docs/**", "examples/**"]
exclude_patterns = ["docs/site/**", "site/**", ".venv*/**"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # mermaid: shown as text here
html_theme = "furo"  # asks nothing of a network
html_title = "spikeguard"
html_copy_source = False
html_show_sphinx = False
