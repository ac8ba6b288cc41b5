"""When a signal leaves its baseline: detectors, baselines, trends, outliers, precursors.

Owns the settings of detection. Must not know incidents or the policy. Start at `detectors.contract`
and `signal_detector`.
"""
