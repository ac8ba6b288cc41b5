"""The constants of detection and naming: one set of defaults for every run.

`docs/detection.md` says what they do; `benchmarks.curves` and `benchmarks.detection` measure them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DetectionSettings:
    """Lengths count measured rows unless they say steps; thresholds are deviations (z)."""

    watchable_after: int = 8  # calm rows until the first judgement

    suspect_z: float = 6.0  # the highest of the rows that confirm one another
    confirm_z: float = 4.4  # every one of them
    confirm_rows: int = 2  # how many they are
    run_z: float = 4.7  # the middle one of three rows in a row that confirm one another
    usual_part: float = 1.4  # times the highest pair of calm rows: more than is usual here
    usual_most: float = 10.0  # no pair is usual above this
    pair_below: float = 1.5  # of two rows alone: times the mean of the three deepest calm blocks
    outlier_z: float = 8.0  # from which one row alone is an event,
    outlier_part: float = 0.05  # and by this part of the loss,
    outlier_below: float = 5.6  # times the mean of the deepest calm rows that lie deep alone,
    outlier_tails: float = 3.4  # in proportion less where that mean is below so many noises,
    outlier_above: float = 1.5  # and times the second highest block
    listed_z: float = 16.0  # from which a single row is listed where others were as high
    lift_z: float = 3.5  # of the median of 8 rows above the 32 before them,
    long_lift_z: float = 2.3  # the same of 16 rows,
    lift_usual: float = 1.9  # and times the highest lift among calm rows
    rise_part: float = 3.4  # times what the level usually rises in 16 rows, of a lift also moves;
    rise_most: float = 7.5  # of this at most so many deviations count
    steep_part: float = 6.0  # times the noise from one row to the next, of a jump,
    steep_z: float = 13.0  # unless a row lies so high
    slow_part: float = 0.035  # of the loss: least slow rise of the smoothed loss above its best,
    slow_z: float = 4.7  # and in deviations of a row,
    slow_wander: float = 6.2  # and in usual moves of the level in 16 rows
    slow_rows: int = 48  # that it has lasted

    precursor_z: float = 8.0  # of a leading signal, in log space
    precursor_quiet: int = 50  # rows without another precursor of the same signal
    attentive_steps: int = 100  # steps of close measurement after a precursor

    band_z: float = 3.0  # half width of the band that a healed loss is back in
    level_z: float = 1.25  # half width for the median of the rows after a command
    lasting_part: float = 0.012  # least lasting damage, as a part of the level of the loss,
    lasting_z: float = 3.5  # and in deviations of the mean of a horizon's rows
    lasting_doubt: float = 0.1  # probability of it below which a spike is over at once
    lasting_sure: float = 0.75  # and from which on a loss that is back at the level before it only
    late_rows: int = 150  # after so many rows has not healed
    settle_rows: int = 20  # rows in the band until the incident closes as healed
    settle_rows_sparse: int = 5  # the same where rows are many steps apart
    horizon_steps: int = 500  # the kind is decided this long after the peak
    horizon_rows: int = 60  # but never on fewer rows
    accept_after: float = 2.0  # horizons after the peak until a settled level is accepted
    drop_settle: int = 5  # finite rows after a dropped update until nothing came of it
    drop_limit: int = 10  # dropped updates in a row that are an incident of their own
    zero_rows: int = 3  # losses of exactly 0 in a row, after losses well above 0
    recover_steps: int = 50  # steps past the onset that must be calm after an intervention

    def horizon_at(self, gap: float) -> int:
        """Steps of a horizon where rows are `gap` steps apart."""
        return max(self.horizon_steps, round(self.horizon_rows * gap))
