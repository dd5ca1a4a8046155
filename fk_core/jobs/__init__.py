"""Work that outlives the request that asked for it."""

from __future__ import annotations

from fk_core.jobs.inprocess import Jobs
from fk_core.jobs.recorded import ENDED

__all__ = ["ENDED", "Jobs"]
