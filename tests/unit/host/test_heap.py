"""Freed memory is given back when the process has grown and stands still."""

from rewindmq.engine.host.heap import GROWN_BYTES, STILL_LOOKS, Stillness


def any_of(stillness: Stillness, resident_bytes: int) -> bool:
    return any([stillness.look(resident_bytes) for _ in range(5 * STILL_LOOKS)])  # noqa: C419 all looks are taken


def test_memory_is_given_back_once_when_a_grown_process_stands_still() -> None:
    stillness = Stillness()
    small, grown = 100_000_000, 100_000_000 + GROWN_BYTES
    assert not any_of(stillness, small)
    looks = [stillness.look(grown + number * 5_000_000 % 40_000_000) for number in range(50)]
    assert not any(looks), "it works"
    looks = [stillness.look(grown) for _ in range(STILL_LOOKS + 1)]
    assert looks.count(True) == 1
    assert not any_of(stillness, grown), "what is left is in use"
    assert not any_of(stillness, small)
    assert any_of(stillness, grown)
