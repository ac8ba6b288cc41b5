"""One run as detection sees it: samples in, events out, state as bytes.

Puts detection and diagnosis together. Start at `monitor`.
"""
