"""Origin of the measurements that a fit uses."""

from __future__ import annotations

from dataclasses import dataclass

from dse.machine.fits import Provenance


@dataclass(frozen=True, slots=True)
class FitOrigin:
    """Provenance that a fit hands on to its calibrations.

    Attributes:
        name: Name of the calibration.
        device: Device that was measured.
        source: Who measured, with what.
        as_of: When.
        implementation: Library whose kernels were measured; empty where it is not named.
    """

    name: str
    device: str
    source: str
    as_of: str = "unknown"
    implementation: str = ""

    def provenance(self, points: int) -> Provenance:
        """Returns the provenance of a fit on a number of points."""
        return Provenance(self.name, self.device, self.source, self.as_of, points)
