"""A reference pre-training job and a chaos lab: one small language model, real text, real faults.

`train.py` is the loop to copy; the rest of the package is what any such job has anyway.
"""
