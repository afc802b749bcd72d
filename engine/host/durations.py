"""Durations as operators write them: `90s`, `1h`, `7d`, `1h30m`."""

import re
from typing import Final

UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"([0-9]{1,12})([smhdw])")
_WHOLE: Final = re.compile(r"(?:[0-9]{1,12}[smhdw])+")
MOST_MS: Final = 10_000 * 365 * UNIT_MS["d"]


def duration_ms(text: str) -> int:
    """Parse a duration of more than 0; return milliseconds.

    ValueError: the text is none."""
    stripped = text.strip()
    if _WHOLE.fullmatch(stripped):
        found = sum(int(count) * UNIT_MS[unit] for count, unit in _PART.findall(stripped))
        if 0 < found <= MOST_MS:
            return found
    raise ValueError(f"'{text}' is not a duration: give a number with s, m, h, d or w, such as 90s, 1h or 7d")


def short_ms(text: str) -> int:
    """Parse a duration that may be in ms, or 0; return milliseconds.

    ValueError: the text is none."""
    number, unit = text.strip()[:-2], text.strip()[-2:]
    if text.strip() == "0":
        return 0
    return int(number) if unit == "ms" and number.isdecimal() and len(number) <= 9 else duration_ms(text)


def in_words(milliseconds: int) -> str:
    """Return a duration in its largest one or two units, rounded down: `1h 30m`, `12s`, `400ms`."""
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, milliseconds = divmod(milliseconds, UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts) or f"{milliseconds}ms"
