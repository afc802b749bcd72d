"""Durations as operators write them, such as `90s`, `7d` or `1h30m`, and as the broker says them."""

from typing import Final

from rewindmq.projections.rewind import UnreadableTime, parse_duration

UNIT_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
MOST_MS: Final = 10_000 * 365 * UNIT_MS["d"]


def duration_ms(text: str) -> int:
    """Parse a duration of more than 0; return milliseconds.

    ValueError: the text is none."""
    try:
        found = parse_duration(text)
    except UnreadableTime:
        found = 0
    if 0 < found <= MOST_MS:
        return found
    raise ValueError(f"'{text}' is no duration: give a number with s, m, h, d or w, such as 90s, 1h or 7d")


def in_words(milliseconds: int) -> str:
    """A duration in its largest one or two units, rounded down: `1h 30m`, `12s`, `400ms`."""
    parts = []
    for unit, length_ms in UNIT_MS.items():
        count, milliseconds = divmod(milliseconds, length_ms)
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts) or f"{milliseconds}ms"
