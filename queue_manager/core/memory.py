"""Tuning of Python's garbage collector for long-lived processes.

A worker keeps thousands of messages alive. With Python's default, every 700 new objects trigger a collection, many of
them a full one, which takes a fifth of a busy worker's time.
"""

from __future__ import annotations

import gc

GC_THRESHOLD = 50_000  # net new objects that trigger a collection of the youngest generation
# Of a pool process, which keeps nothing alive between two tasks. Its garbage is large: that of an exception holds the
# frames of the task, and Celery adds some 300 objects that describe them.
POOL_GC_THRESHOLD = 10_000


def reduce_garbage_collection(*, threshold: int = GC_THRESHOLD) -> None:
    """Freeze existing objects and raise the GC threshold. Call once after start-up of a long-lived process.

    Python collects its oldest generation only when that has grown by a quarter since the last full collection. The one
    below makes it start from nothing: otherwise the frozen objects count, and garbage stays for hours.
    """
    gc.freeze()
    gc.collect()
    gc.set_threshold(threshold, 10, 10)
