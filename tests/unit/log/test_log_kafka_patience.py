"""When silence of Kafka's is called trouble, without a Kafka. With one: tests/system/kafka/test_kafka_trouble.py."""

import pytest

from rewindmq.engine.log.kafka.patience import LOOK_SECONDS, PATIENCE_SECONDS, Patience

LOOK = 0.1  # seconds between two looks of a process that gets to run
LONG = int(PATIENCE_SECONDS / LOOK) * 10  # looks


class Looking:
    def __init__(self) -> None:
        self.patience = Patience()
        self.now = 1_000.0
        self.patience.look(self.now, behind=False)

    def look(self, times: int = 1, seconds: float = LOOK, behind: bool = False) -> None:
        for _ in range(times):
            self.now += seconds
            self.patience.look(self.now, behind)


def test_a_partition_that_gives_nothing_back_is_silent() -> None:
    each = Looking()
    probes = {"queues-1": each.patience.probe(b"1")}
    looks = 0
    while each.patience.silent(probes, 1) is None:
        each.look()
        looks += 1
    assert looks == pytest.approx(PATIENCE_SECONDS / LOOK, abs=1)
    assert each.patience.silent(probes, 1) == "queues-1"


def test_the_probe_is_known_by_its_bytes() -> None:
    patience = Looking().patience
    assert patience.heard(patience.probe(b"1"), [b"0", b"1"])
    assert not patience.heard(patience.probe(b"1"), [b"0"])
    assert not patience.heard(None, [b"0"])


def test_a_partition_with_other_records_before_the_probe_is_not_silent() -> None:
    """Much was appended at once, and Kafka takes it: the last of it comes back late."""
    each = Looking()
    probes = {"queues-1": each.patience.probe(b"last")}
    for _ in range(LONG):
        each.look()
        each.patience.heard(probes["queues-1"], [b"another"])
        assert each.patience.silent(probes, 1_000) is None


def test_what_comes_from_one_partition_says_nothing_about_another() -> None:
    each = Looking()
    probes = {"queues-0": each.patience.probe(b"0"), "queues-1": each.patience.probe(b"1")}
    for _ in range(LONG):
        each.look()
        each.patience.heard(probes["queues-0"], [b"another"])
    assert each.patience.silent(probes, 2) == "queues-1"


@pytest.mark.parametrize("seconds", [3.0, 3_600.0])
def test_a_process_that_stood_still_did_not_look(seconds: float) -> None:
    each = Looking()
    probes = {"queues-1": each.patience.probe(b"1")}
    each.look(int((PATIENCE_SECONDS - LOOK_SECONDS) / LOOK) - 1)
    each.look(seconds=seconds)
    assert each.patience.silent(probes, 1) is None


def test_while_there_is_something_to_read_nobody_waits_for_kafka() -> None:
    each = Looking()
    probes = {"queues-1": each.patience.probe(b"1")}
    each.look(LONG, behind=True)
    assert each.patience.silent(probes, 1) is None
    each.look(LONG)
    assert each.patience.silent(probes, 1) == "queues-1"


def test_what_was_appended_while_a_probe_was_on_its_way_is_watched_too() -> None:
    each = Looking()
    for _ in range(LONG):  # it comes back bit by bit
        each.look()
        each.patience.heard(None, [b"another"])
        assert each.patience.silent({}, 1_000) is None
    each.look(LONG)
    assert each.patience.silent({}, 1_000) == "the log"
    assert each.patience.silent({}, 0) is None
    each.look()
    assert each.patience.silent({}, 1) is None, "the time before counts for nothing"
