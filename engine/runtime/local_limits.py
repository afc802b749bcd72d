"""How much of the history stays on the local disk, as operators write it: `7d`, `50GB`, `7d,50GB`."""

from rewindmq.engine.log.archive.local_space import Limits
from rewindmq.engine.runtime.durations import duration_ms
from rewindmq.engine.runtime.watermarks import size_of


def local_limits(text: str) -> Limits:
    """Parse an age, a size, or both with a comma between.

    ValueError: the text is none of these."""
    age_ms = size_bytes = None
    for part in text.split(","):
        try:
            if age_ms is None and part.strip()[-1:] in ("s", "m", "h", "d", "w"):
                age_ms = duration_ms(part)
            elif size_bytes is None and (size_bytes := size_of(part)) > 0:
                continue
            else:
                raise ValueError
        except ValueError:
            raise ValueError(f"'{text}' is no limit: give an age, a size, or both, such as 7d, 50GB or 7d,50GB") from None
    return Limits(age_ms, size_bytes)
