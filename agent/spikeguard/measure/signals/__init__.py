"""Signals that are measured only where asked for: tokens, sequences, attention, activations.

Law: nothing here reads a device value, meets another rank or raises into the loop. What a step
showed is folded into a few tensors at once; `optional` hands them on with the step's sample.
"""
