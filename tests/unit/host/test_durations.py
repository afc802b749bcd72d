"""Durations as operators write them (engine/host/durations.py)."""

import pytest

from rewindmq.engine.host.durations import duration_ms, in_words


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90s", 90_000), ("1h", 3_600_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("2w", 1_209_600_000)],
)
def test_a_duration(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "0s", "1", "h", "-1h", "1.5h", "1y", "5ms", "999999999999w"])
def test_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0ms"),
        (400, "400ms"),
        (12_345, "12s"),
        (90_000, "1m 30s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (90_000_000, "1d 1h"),
    ],
)
def test_in_words(milliseconds: int, words: str) -> None:
    assert in_words(milliseconds) == words
