"""When a silent node is lost: by own beats that came back, and the time between them."""

from rewindmq.engine.cluster.silences import LEAST_MISSED, Silences

A, B = 7, 9


def test_a_node_is_lost_after_its_time_however_slow_the_log_is() -> None:
    """It was lost after a number of round trips: a minute, where each of them took five seconds."""
    silences = Silences(6)
    for now in (0, 5):
        silences.missed([A], now)
        assert not silences.lapsed([A])
    silences.missed([A], 10)
    assert {epoch: str(each) for epoch, each in silences.lapsed([A]).items()} == {A: "10.0 seconds, 3 beats"}


def test_a_fast_log_makes_nobody_lost_before_its_time() -> None:
    silences = Silences(6)
    for tenths in range(60):
        silences.missed([A], tenths / 10)
        assert not silences.lapsed([A])
    silences.missed([A], 6.0)
    assert A in silences.lapsed([A])


def test_a_beat_ends_a_silence() -> None:
    silences = Silences(6)
    for now in range(6):
        silences.missed([A, B], now)
    silences.heard(A)
    silences.missed([A, B], 6)
    assert list(silences.lapsed([A, B])) == [B]


def test_a_process_that_stood_still_takes_nobody_for_lost() -> None:
    """One own beat came before it stood still, and one was on its way. The beats of others are behind that one."""
    silences = Silences(6)
    silences.missed([A], 0)
    silences.missed([A], 3_600)
    assert LEAST_MISSED > 2
    assert not silences.lapsed([A])
    silences.heard(A)
    silences.missed([A], 3_601)
    assert not silences.lapsed([A])


def test_a_node_that_left_is_forgotten() -> None:
    silences = Silences(1)
    for now in range(5):
        silences.missed([A, B], now)
    silences.missed([B], 5)
    assert list(silences.lapsed([A, B])) == [B]
