"""The constants of detection and naming: one set of defaults for every run.

Values only, no logic. `docs/detection.md` says what they do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DetectionSettings:
    """Lengths count measured rows unless they say steps; thresholds are robust deviations."""

    window: int = 128  # rows that shape a baseline
    quarantine: int = 16  # newest rows, kept out of the baseline until nothing came of them
    quarantine_lifted: int = 64  # the most of them while a lift is under way
    refit_every: int = 8  # admitted rows between two fits of a loss
    refit_leading_every: int = 32  # the same of a leading signal, which opens no incident
    watchable_after: int = 24  # rows until the first judgement
    scale_floor: float = 0.002  # least scale, as a part of the level of the loss

    suspect_z: float = 6.0  # one row this far off is held for confirmation
    confirm_z: float = 4.0  # the next row this far off confirms it
    confirm_rows: int = 2  # rows that it takes, the one that is held among them
    warm_z: float = 4.0  # the row before this far off confirms it at once
    lone_z: float = 5.0  # narrow scales from which a row between calm ones stands out alone,
    outlier_z: float = 8.0  # and from which it is an event of its own,
    outlier_part: float = 0.05  # if it also stands out by this part of the loss
    record_part: float = 1.1  # times the highest row of the baseline: higher than all before, where
    record_z: float = 2.0  # the upper tail makes the scale, and at least this far off
    record_rows: int = 3  # of them in a row that open an incident
    drift_slack: float = 1.0  # deviations a row that a cumulated lift may have for nothing
    drift_clip: float = 6.0  # most that one row may add to it
    drift_start: float = 2.0  # below this a lift has not begun
    drift_hold: float = 6.0  # from here on its rows are kept out of the baseline
    drift_limit: float = 14.0  # cumulated lift that opens an incident,
    drift_rows: int = 20  # once it has lasted this long
    drift_usual: float = 1.25  # times a lift that came twice and healed, below which one is usual,
    drift_most: float = 100.0  # and the most that a lift may then have

    precursor_z: float = 8.0  # of a leading signal, in log space
    precursor_quiet: int = 50  # rows without another precursor of the same signal
    attentive_steps: int = 100  # steps of close measurement after a precursor

    band_z: float = 3.0  # half width of the band that a healed loss is back in
    level_z: float = 1.25  # half width for the median of the rows after a command
    lasting_part: float = 0.012  # least lasting damage, as a part of the level of the loss,
    lasting_z: float = 3.5  # and in deviations of the mean of a horizon's rows
    lasting_doubt: float = 0.1  # probability of it below which a spike is over at once
    settle_rows: int = 20  # rows in the band until the incident closes as healed
    settle_rows_sparse: int = 5  # the same where rows are many steps apart
    horizon_steps: int = 500  # the kind is decided this long after the peak
    horizon_rows: int = 60  # but never on fewer rows
    accept_after: float = 2.0  # horizons after the peak until a settled level is accepted
    drop_settle: int = 5  # finite rows after a dropped update until nothing came of it
    drop_limit: int = 10  # dropped updates in a row that are an incident of their own
    recover_steps: int = 50  # steps past the onset that must be calm after an intervention
