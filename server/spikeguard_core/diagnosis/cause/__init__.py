"""Why an incident began: what may have caused it, ranked, from what was measured alone."""
