"""The names of the jobs in `job_works`, which this process need not import: it stores them, workers run them."""

from __future__ import annotations

CONSECUTIVE = tuple(f"n{number}" for number in range(10))
OTHERS = ("now", "soon", "long", "paused", "meanwhile")
NAMES = (*CONSECUTIVE, *OTHERS, "mixed", "fragile", "holds_gil", "hangs", "patient")
