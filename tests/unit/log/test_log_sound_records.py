"""The check of records that decodes few of them (engine/log/embedded/sound_records.py) refuses what the decoder
refuses, whatever stood before."""

import random

import pytest

from rewindmq.engine.log.embedded.sound_records import SoundRecords
from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord
from rewindmq.schemas.events import Acked, Event, Published, Tick
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE
from rewindmq.schemas.values import Actor, Encryption, Origin, Route
from tests.support.traffic import START_MS

ANN = Actor("ann", 7)
ROUTES = (Route("/", "", "q", ("q",)), Route("/", "amq.topic", "flights.é", ("q", "z")), Route("/", "", "q" * 70, ()))
SIZES = (0, 1, 20, 63, 64, 65, 127, 128, 8_191, 8_192, 20_000)


def publish(route: Route, size: int, byte: bytes = b"x", **more: object) -> Published:
    values: dict[str, object] = {"expiration_ms": None, "priority": None, "origin": None, "encryption": None} | more
    properties = bytes.fromhex("1000") + b"\x02"
    return Published(route, properties, persistent=True, body=byte * size, body_size=size, **values)  # type: ignore[arg-type]


def record(event: Event, timestamp_ms: int = START_MS, actor: Actor = ANN) -> bytes:
    """A bare record."""
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)[HEADER_SIZE:]


def refused(before: bytes, found: bytes) -> bool:
    """Return True if a record is refused behind a sound one that came twice, and is therefore compared with it."""
    fault = SoundRecords().first_unsound((before, before, found))
    assert fault is None or fault[0] == 2
    return fault is not None


def undecodable(found: bytes) -> bool:
    try:
        Decoder().decode(HEADER + found)
    except UndecodableRecord:
        return True
    return False


def harmed(dice: random.Random, sound: bytes) -> bytes:
    """A record with a byte changed, dropped or put in, or cut off somewhere; mostly before its body."""
    at = dice.randrange(len(sound) if dice.random() < 0.2 else min(len(sound), 60))
    how = dice.randrange(5)
    if how == 0:
        return sound[:at]
    if how == 1:
        return sound[:at] + sound[at + 1 :]
    if how == 2:
        return sound + bytes([dice.randrange(256)])
    if how == 3:
        return sound[:at] + bytes([dice.randrange(256)]) + sound[at:]
    return sound[:at] + bytes([sound[at] ^ 1 << dice.randrange(8)]) + sound[at + 1 :]


@pytest.mark.parametrize("byte", [b"x", b"\1"])  # or the second byte of the sizes from 64 to 127
@pytest.mark.parametrize("size", SIZES)
def test_any_flipped_bit_or_cut_end_is_judged_as_by_the_decoder(size: int, byte: bytes) -> None:
    sound = record(publish(ROUTES[0], size, byte))
    head = min(len(sound), 70)
    flipped = [sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(head) for bit in range(8)]
    for found in (*flipped, *(sound[:end] for end in range(head)), sound[:-1], sound + b"\0"):
        assert refused(sound, found) == undecodable(found), found[:head].hex()


@pytest.mark.long(seed=range(5, 20))
@pytest.mark.parametrize("seed", range(20))
def test_records_sound_and_harmed_are_judged_as_by_the_decoder(seed: int) -> None:
    dice, check = random.Random(seed), SoundRecords()
    origin = Origin("/", "dead", 3, 9, "expired", 4)
    sealed = Encryption("ann", "key", b"n" * 12, 7)
    seen = {True: 0, False: 0}
    records = []
    for _ in range(3_000):
        route, size = dice.choice(ROUTES), dice.choice(SIZES[:8])
        event = dice.choice(
            (
                publish(route, size),
                publish(route, size),
                publish(route, size, expiration_ms=dice.choice((None, 5))),
                publish(route, size, origin=dice.choice((None, origin))),
                publish(route, size, encryption=sealed),
                Acked("/", "q", 1, ((3, dice.randrange(3, 900)),)),
                Tick(),
            )
        )
        timestamp_ms = dice.choice((START_MS, START_MS + dice.randrange(9_000), 0, 5, 70, -1, -(10**9), 1 << 45))
        found = record(event, timestamp_ms, dice.choice((ANN, Actor("", 0))))
        found = harmed(dice, found) if dice.random() < 0.5 else found
        records.append(found)
        seen[undecodable(found)] += 1
    assert min(seen.values()) > 300, seen
    faults, begin = [], 0
    while begin < len(records):
        fault = check.first_unsound(records[begin : begin + 50])
        if fault is None:
            begin += 50
        else:
            begin += fault[0] + 1
            faults.append(begin - 1)
    assert faults == [at for at, found in enumerate(records) if undecodable(found)]


def test_a_short_time_is_no_head_to_compare_with() -> None:
    """Two bytes that say that the time goes on would take the actor for the rest of it."""
    short = record(publish(ROUTES[0], 3), 5)
    found = b"\x80\x80" + short[2:]
    assert refused(short, found) == undecodable(found)


RANGES: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((3, 3),),
    ((3, 70), (90, 8_200)),
    tuple((each * 1_000, each * 1_000 + 4) for each in range(1, 9)),
    tuple((each, each) for each in range(1, 19, 2)),  # more than are compared with a form
    ((-5, 1 << 62),),
)


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("before", RANGES[1:4])
def test_every_bit_flipped_in_an_ack_is_judged_as_by_the_decoder(
    ranges: tuple[tuple[int, int], ...], before: tuple[tuple[int, int], ...]
) -> None:
    first, sound = (record(Acked("/", "q", 1, each)) for each in (before, ranges))
    flipped = [
        sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :] for at in range(len(sound)) for bit in range(8)
    ]
    longer = [sound[:at] + b"\x80" * many + sound[at:] for at in range(9, len(sound)) for many in (1, 7, 8, 9, 10)]
    for found in (sound, *flipped, *longer, *(sound[:end] for end in range(len(sound))), sound + b"\0"):
        assert refused(first, found) == undecodable(found), found.hex()


def test_an_encrypted_body_that_looks_like_another_one_teaches_nothing() -> None:
    """By chance its bytes have, at their end, a size and a body of the plain size."""
    begin, plain = b"c" * 30, 9
    encryption = Encryption("ann", "key", b"n" * 12, plain)
    event = publish(ROUTES[0], 0, encryption=encryption)
    event.body, event.body_size = begin + bytes([2 * plain]) + b"c" * plain, plain
    sound = record(event)
    shorter = sound[: -1 - plain] + bytes([2 * 4]) + b"c" * 4
    assert undecodable(shorter)
    assert refused(sound, shorter)
