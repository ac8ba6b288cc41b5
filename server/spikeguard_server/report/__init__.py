"""Post-mortems: facts in, Markdown, HTML, JSON and pictures out."""
