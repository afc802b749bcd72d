"""A run of publishes is found by bytes: its messages are those that decoding finds one by one."""

import random

import pytest

from rewindmq.projections.publish_runs import run_sizes
from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord
from rewindmq.schemas.events import Acked, Event, Published
from rewindmq.schemas.values import Actor, Route

SIZES = ((100,), (0, 1, 63, 64, 65), (8_190, 8_191, 8_192, 9_000), (100, 100, 100, 100, 101))


class Records:
    """Publishes, most of them alike, with other records among them."""

    def __init__(self, seed: int) -> None:
        dice, encoder = random.Random(seed), Encoder()
        sizes, offset = dice.choice(SIZES), dice.randrange(100)
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        self.times: list[int] = []
        for _ in range(dice.randrange(2, 60)):
            prefix = encoder.prefix(1_763_694_000_000 + (dice.random() < 0.02), Actor("ann", 7))
            route, size = Route("/", "", "other" if dice.random() < 0.01 else "key", ("q",)), dice.choice(sizes)
            event: Event = Published(route, b"\x10\x00\x02", body=dice.randbytes(size), body_size=size)
            if dice.random() < 0.03:
                event = Acked("/", "q", 3, ((1, 1),))
            record = encoder.encode(prefix, event)
            self.records.append(record[: dice.randrange(len(record))] if dice.random() < 0.02 else record)
            offset += 1 + (dice.random() < 0.02)
            self.offsets.append(offset)
            self.times.append(5 + (dice.random() < 0.02))

    def decoded(self, index: int, times: bool) -> tuple[object, ...]:
        """The values that the messages of a run have in common; and the size of the body, last."""
        try:
            timestamp_ms, actor, event = Decoder().decode(self.records[index], False)
        except UndecodableRecord:
            return ()
        if not isinstance(event, Published):
            return ()
        time_ms = self.times[index] if times else 0
        return timestamp_ms, time_ms, actor, event.route.routing_key, self.offsets[index] - index, event.body_size


@pytest.mark.parametrize("times", [False, True])
def test_a_run_has_the_sizes_that_decoding_finds(times: bool) -> None:
    found = 0
    for seed in range(100):
        log = Records(seed)
        for index in range(0, len(log.records), 7):
            expected: list[object] = []
            first = log.decoded(index, times)
            for number in range(index, len(log.records)):
                if not first or (other := log.decoded(number, times))[:-1] != first[:-1]:
                    break
                expected.append(other[-1])
            if first:
                event = Decoder().decode(log.records[index], False)[2]
                given = log.times if times else None
                sizes = run_sizes(event, log.offsets, log.records, given, index, len(log.records))
                assert sizes == (expected if len(expected) > 1 else []), (seed, index)
                found = max(found, len(sizes))
    assert found > 20


@pytest.mark.parametrize("size", [0, 3, 100])
def test_sizes_in_more_bytes_than_they_take_are_in_no_run(size: int) -> None:
    """The store has the log's bytes of a message that is in a run, and they must be those of our encoder."""
    encoder, event = Encoder(), Published(Route("/", "", "k", ("q",)), b"\x00\x00", body=bytes(size), body_size=size)
    sound = encoder.encode(encoder.prefix(1_763_694_000_000, Actor("ann", 7)), event)
    at = len(sound) - size
    longer = sound[: at - 1] + bytes([sound[at - 1] | 0x80, 0]) + sound[at:]
    decoded = Decoder().decode(longer, False)[2]
    assert isinstance(decoded, Published)
    assert decoded.body_size == size
    assert run_sizes(decoded, range(3), [longer, longer, longer], None, 0, 3) == []
    assert run_sizes(decoded, range(4), [sound, sound, longer, sound], None, 0, 4) == [size, size]
