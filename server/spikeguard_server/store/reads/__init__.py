"""Reads for the API, one module for each subject. Nothing here writes."""
