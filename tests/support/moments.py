"""Moments in the past, for tests."""

import time
from datetime import UTC, datetime


def now() -> str:
    """A moment between what happened before and what happens next."""
    time.sleep(0.02)
    moment = datetime.now(UTC)
    time.sleep(0.02)
    return moment.isoformat(timespec="milliseconds")
