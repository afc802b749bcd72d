"""The packed word of a message: the bits that its table promises, for each kind of queue."""

import pytest

from rewindmq.projections.machine.data import message_word as w

FLAGS = {"PERSISTENT": 32, "REDELIVERED": 33, "BY_PROPERTY": 34}
LARGEST = (1 << 63) - 1  # a word is kept as a signed number of 64 bits


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_the_bit_that_the_table_says(name: str) -> None:
    assert getattr(w, name) == 1 << FLAGS[name]


def test_size_and_flags_of_a_full_word() -> None:
    assert w.size_of(LARGEST) == w.SIZE_MASK == (1 << 32) - 1
    assert w.is_redelivered(LARGEST)
    assert not w.is_redelivered(LARGEST & ~w.REDELIVERED)


def test_a_stream_keeps_seconds_above_persistent() -> None:
    word = w.stream_word(77, 5)
    assert word == 77 | 1 << 32 | 5 << 33
    assert (w.size_of(word), w.seconds_of(word)) == (77, 5)
    assert w.stream_word(w.SIZE_MASK, w.SECONDS_MAX) == LARGEST
    assert w.seconds_of(w.stream_word(0, w.SECONDS_MAX + 1)) == w.SECONDS_MAX


def test_3_13_counts_returns_in_all_bits_above_the_flags() -> None:
    flags = 9 | w.PERSISTENT | w.REDELIVERED
    word = w.delivered_before(flags, 3, False)
    assert word == flags | 3 << 35
    assert w.count_of(w.returned(word)) == 4
    full = w.delivered_before(flags, 1 << 40, False)
    assert full == LARGEST & ~w.BY_PROPERTY & ~w.SIZE_MASK | 9
    assert w.returned(full) == full


def test_4_3_counts_beside_the_level() -> None:
    level = 31 << w.LEVEL_SHIFT
    word = w.delivered_before(level, 3, True)
    assert word == level | 3 << 40
    assert w.counts_of(w.returned_or_failed(word, False)) == (3, 1)
    assert w.returned_or_failed(word, True) == level | 4 << 40 | 1 << 52
    full = LARGEST & ~w.BY_PROPERTY
    assert w.counts_of(full) == (w.DELIVERIES_MAX_4_3, w.ACQUIRED_MAX_4_3) == (4095, 2047)
    assert w.returned_or_failed(full, True) == full
