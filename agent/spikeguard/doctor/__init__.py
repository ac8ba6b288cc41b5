"""What is wrong with a job from its first step, and what a checkpoint shows of it.

Nothing here refuses, waits, or changes a job: a finding is told, and that is all.
"""
