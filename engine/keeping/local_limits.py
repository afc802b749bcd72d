"""Limits of the history on the local disk, in the form for operators: `7d`, `50GB`, `7d,50GB`."""

from rewindmq.engine.host.durations import duration_ms
from rewindmq.engine.host.watermarks import BARE_LEAST, size_of
from rewindmq.engine.keeping.local_space import SpaceLimits


def local_limits(text: str) -> SpaceLimits:
    """Parse an age, a size, or both with a comma between.

    Raises ValueError for any other text."""
    age_ms = size_bytes = None
    try:
        for part in text.split(","):
            if part.strip()[-1:] in tuple("smhdw"):
                _require_first(age_ms)
                age_ms = duration_ms(part)
            else:
                _require_first(size_bytes)
                size_bytes = size_of(part)
                if size_bytes == 0 or (part.strip().isdigit() and size_bytes < BARE_LEAST):
                    raise ValueError
    except ValueError:
        known = "give an age, a size, or both, such as 7d, 50GB or 7d,50GB"
        raise ValueError(f"'{text}' is not a limit: {known}") from None
    return SpaceLimits(age_ms, size_bytes)


def _require_first(found: int | None) -> None:
    """Raise ValueError for a second limit of the same kind."""
    if found is not None:
        raise ValueError
