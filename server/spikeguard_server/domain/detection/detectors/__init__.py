"""Detectors of one signal: the contract, those that ship, and the adapter for the monitor.

Start with `contract.py`. `spikeguard_server.detectors` finds them by name, installed ones too.
"""
