"""Signals of a step, from the device to a row on the host. Start at `collector`."""
