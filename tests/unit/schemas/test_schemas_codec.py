"""The codec against fastavro, and against bytes that are not sound."""

import io
import random
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord, strip_body
from rewindmq.schemas.events import EVENT_TYPES, Acked, Nacked, PolicyApplied, Published, Tick
from rewindmq.schemas.metadata_events import ExchangeDeclared, VhostDeleted
from rewindmq.schemas.registry import parsed_envelope_schema
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE
from rewindmq.schemas.values import BROKER, Actor, Argument, Encryption, Policy, Route
from tests.support.examples import examples, rounds
from tests.support.samples import SAMPLES, sample_record
from tests.support.strategies import EVENTS, actors, events, plain, timestamps

ROUTE = Route("/", "flights", "dep.JFK.AA", ("jfk", "aa"))
SCHEMA = parsed_envelope_schema()


def published(body: bytes = b"body", route: Route = ROUTE, encryption: Encryption | None = None) -> Published:
    size = len(body) if encryption is None else encryption.plain_size
    return Published(route, b"\x00\x00", persistent=True, encryption=encryption, body=body, body_size=size)


def encoded(event: Any, timestamp_ms: int = 1_763_715_845_123, actor: Actor = BROKER) -> bytes:
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


def bare(event: Any, timestamp_ms: int = 1_763_715_845_123, actor: Actor = BROKER) -> bytes:
    """The record without its header."""
    return encoded(event, timestamp_ms, actor)[HEADER_SIZE:]


def for_fastavro(value: Any) -> Any:
    """An event as fastavro takes it: records as (name, dict), written without a line of the code under test."""
    if isinstance(value, tuple):
        return [for_fastavro(item) for item in value]
    if not type(value).__module__.startswith("rewindmq.schemas."):
        return value
    fields = {name: for_fastavro(getattr(value, name)) for name in value.__dataclass_fields__ if name != "body_size"}
    if "messages" in fields:
        fields["messages"] = [{"first": first, "last": last} for first, last in fields["messages"]]
    if "positions" in fields:
        fields["positions"] = [{"partition": partition, "offset": offset} for partition, offset in fields["positions"]]
    return f"rewindmq.history.{type(value).__name__}", fields


def by_fastavro(timestamp_ms: int, actor: Actor, event: Any) -> bytes:
    out = io.BytesIO()
    who, what = for_fastavro(actor)[1], for_fastavro(event)
    if reason := who.pop("reason"):
        what = "rewindmq.history.Explained", {"reason": reason, "event": what}
    envelope = {"timestamp": timestamp_ms, "actor": who, "event": what}
    fastavro.schemaless_writer(out, SCHEMA, _without_names(envelope))
    return out.getvalue()


def _without_names(value: Any, in_union: bool = False) -> Any:
    """fastavro wants the record's name only where a union leaves a choice."""
    if isinstance(value, tuple):
        return (value[0], _without_names(value[1])) if in_union else _without_names(value[1])
    if isinstance(value, dict):
        unions = ("event", "origin", "encryption", "policy", "operator_policy", "deduplication")
        return {name: _without_names(item, name in unions) for name, item in value.items()}
    return [_without_names(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("cls", EVENT_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_event_is_written_as_fastavro_writes_it_and_comes_back(cls: type, data: st.DataObject) -> None:
    event, actor, timestamp_ms = data.draw(EVENTS[cls]), data.draw(actors), data.draw(timestamps)
    record = encoded(event, timestamp_ms, actor)
    assert record == HEADER + by_fastavro(timestamp_ms, actor, event)
    decoder = Decoder()
    for _ in range(2):  # the second time from the caches
        got_timestamp_ms, got_actor, got = decoder.decode(record)
        assert (got_timestamp_ms, got_actor, plain(got)) == (timestamp_ms, actor, plain(event))
    assert decoder.timestamp_ms(record) == timestamp_ms


@given(history=st.lists(st.tuples(timestamps, actors, events), max_size=12))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_encoder_and_one_decoder_for_a_whole_history(history: list[tuple[int, Actor, Any]]) -> None:
    encoder, decoder = Encoder(), Decoder()
    for timestamp_ms, actor, event in history + history:
        record = encoder.encode(encoder.prefix(timestamp_ms, actor), event)
        got_timestamp_ms, got_actor, got = decoder.decode(record)
        assert (got_timestamp_ms, got_actor, plain(got)) == (timestamp_ms, actor, plain(event))


@given(event=EVENTS[Published])
@settings(max_examples=examples(100), deadline=None)
def test_without_bodies_the_size_stays_and_a_stripped_record_has_no_body(event: Published) -> None:
    record = encoded(event)
    stripped = strip_body(record)
    assert stripped + event.body == record
    for got in (Decoder().decode(record, bodies=False)[2], Decoder().decode(stripped, bodies=False, stripped=True)[2]):
        assert isinstance(got, Published)
        assert (got.body, got.body_size) == (b"", event.body_size)
        assert (plain(got.route), got.properties, got.origin) == (plain(event.route), event.properties, event.origin)
    if event.body:
        for bodies in (True, False):  # without `stripped` the record looks damaged
            with pytest.raises(UndecodableRecord, match=rf"body is {len(event.body)} bytes long, but .* after 0"):
                Decoder().decode(stripped, bodies)
        with pytest.raises(UndecodableRecord, match=f"goes on for {len(event.body)} bytes behind its end"):
            Decoder().decode(record, bodies=False, stripped=True)


@given(event=events)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_other_records_are_not_stripped(event: Any) -> None:
    if not isinstance(event, Published):
        assert strip_body(encoded(event)) == encoded(event)


def outcome(decode: Any, record: bytes, bodies: bool, stripped: bool = False) -> Any:
    """Return the time, actor and event of a record, without the body, or the text of its fault."""
    try:
        timestamp_ms, actor, event = decode(record, bodies, stripped)
    except UndecodableRecord as error:
        return str(error)
    if isinstance(event, Published):
        event = replace(event, body=b"")
    return timestamp_ms, actor, plain(event)


def assert_read_alike(decoder: Decoder, bare: bytes) -> Any:
    """By the fast way (with whatever this decoder has met before, or nothing) and the judge, with the body, without it,
    and stripped: the same is undecodable, for the same reason, and all else is the same.

    `bare`: what stands behind the header."""
    record = HEADER + bare
    judged = outcome(decoder._any, record, bodies=True)
    stripped = strip_body(record)
    for fresh_or_not in (decoder, Decoder()):
        for decode in (fresh_or_not.decode, fresh_or_not._any):
            assert outcome(decode, record, True) == outcome(decode, record, False) == judged
        assert outcome(fresh_or_not.decode, stripped, False, stripped=True) == judged
    shared = SharedDecoder().decode
    assert outcome(shared, record, True) == outcome(shared, record, False)
    assert outcome(shared, stripped, False, stripped=True) == outcome(shared, record, True)
    return judged


INTERESTING = st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)


@given(event=events, data=st.data())
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_records_are_refused_or_read_alike_on_every_way(event: Any, data: st.DataObject) -> None:
    record = bytearray(bare(event, actor=Actor("guest", 7))[:400])
    decoder = Decoder()
    outcome(decoder.decode, HEADER + record, True)  # warm caches must make no difference
    for _ in range(data.draw(st.integers(0, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(INTERESTING)
    cut = bytes(record[: data.draw(st.integers(0, len(record)))])
    assert_read_alike(decoder, cut + data.draw(st.binary(max_size=2)))


@given(event=EVENTS[Published], user=st.text(max_size=80), data=st.data())
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_published_records_from_anywhere_are_read_alike(event: Published, user: str, data: st.DataObject) -> None:
    """Mostly damaged where it ends: cut within or exactly behind the body's length, or with bytes too many."""
    record = bytearray(bare(event, actor=Actor(user, 0)))
    for _ in range(data.draw(st.integers(0, 2))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(INTERESTING)
    end = len(record) - len(event.body)
    cut = data.draw(st.integers(max(0, end - 3), len(record)) | st.just(end) | st.just(len(record)))
    assert_read_alike(Decoder(), bytes(record[:cut]) + data.draw(st.just(b"") | st.binary(max_size=2)))


@pytest.mark.parametrize("body", [b"b", b"body", b"x" * 9_000])
def test_a_record_cut_right_after_its_bodys_length_is_refused_by_all(body: bytes) -> None:
    record = bare(published(body))
    whole = assert_read_alike(Decoder(), record)
    assert isinstance(whole, tuple)
    judged = assert_read_alike(Decoder(), record[: -len(body)])
    assert f"body is {len(body)} bytes long, but the record ends after 0" in judged
    assert "the record goes on for 1 bytes behind its end" in assert_read_alike(Decoder(), record + b"x")


def test_what_looks_like_the_mark_of_an_unstripped_record_is_none() -> None:
    """A record that begins with strip_body's own mark, and one that holds a sound record behind it."""
    for damaged in (b"\xff" * 11, b"\xff" * 11 + bare(published()), b"\xff" * 22 + bare(Tick())):
        assert "timestamp is longer than 10 bytes" in assert_read_alike(Decoder(), damaged)


@given(record=st.binary(max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_random_bytes(record: bytes) -> None:
    assert_read_alike(Decoder(), record)


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_another_header_is_noticed_whatever_was_met_before(at: int) -> None:
    """On each of the ways that compare with what was met: messages without bodies, acks, and all else."""
    for event in (published(), Acked("/", "q", 3, ((1, 2),)), Nacked("/", "q", 3, ((1, 2),), True, "nack"), Tick()):
        record = encoded(event)
        other = record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]
        for bodies in (True, False):
            decoder = Decoder()
            for _ in range(4):
                assert plain(decoder.decode(record, bodies)[2]) == plain(Decoder().decode(record, bodies)[2])
            with pytest.raises(UndecodableRecord, match="no released schema" if at > 1 else "byte 0 of "):
                decoder.decode(other, bodies)
            assert strip_body(other) is other
            with pytest.raises(UndecodableRecord, match="no released schema" if at > 1 else "byte 0 of "):
                decoder.decode(other, False, stripped=True)


@pytest.mark.parametrize("cls", EVENT_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_truncation_is_refused(cls: type, data: st.DataObject) -> None:
    record = encoded(data.draw(EVENTS[cls]))
    decoder = Decoder()
    for length in range(min(len(record), 300)):
        with pytest.raises(UndecodableRecord, match=rf"^byte \d+ of {length}: "):
            decoder.decode(record[:length])


HEAD = bare(Tick())[:-1]


@pytest.mark.parametrize(
    ("damaged", "error"),
    [
        (b"", "byte 10 of 10: the record ends within timestamp"),
        (b"\xff" * 9, "byte 10 of 19: the record ends within timestamp"),
        (b"\xff" * 12, "byte 10 of 22: timestamp is longer than 10 bytes"),
        (b"\xff" * 9 + b"\x02", "byte 10 of 20: timestamp does not fit into 64 bits"),
        (b"\x00\x01", "byte 11 of 12: user has the negative length -1"),
        (b"\x00\x08ab", "byte 12 of 14: user is 4 bytes long, but the record ends after 2"),
        (b"\x00\x04a\xff\x00\x16", "byte 13 of 16: user is not UTF-8: invalid start byte"),
        (HEAD + b"\x8e\x01", "byte 18 of 20: there is no event type number 71"),
        (HEAD + b"\x01", "byte 18 of 19: there is no event type number -1"),
        (HEAD + b"\x16\x00\x00", "byte 19 of 21: the record goes on for 2 bytes behind its end"),
        (HEAD + b"\x0c\x00\x00\x02\x00", "byte 22 of 23: if_empty"),
        (HEAD + b"\x0c\x00\x00\x02\x01", "byte 21 of 23: if_unused is neither true (1) nor false (0) but 2"),
        (HEAD + b"\x04\x00\x00\x00\x00\x00\x08", "byte 24 of 25: method has no symbol number 4"),
        (HEAD + b"\x0e\x00\x00\x04", "byte 21 of 22: policy has no branch number 2"),
        (
            HEAD + b"\x00\x00\x00\x00\x00\x00" + b"\xfe" + b"\xff" * 7 + b"\x7f",
            "byte 33 of 33: properties is 4611686018427387903 bytes long, but the record ends after 0",
        ),
        (
            HEAD + b"\x00\x00\x00\x00\x00\x00" + b"\x00\x00\x00\x00" + b"\x02\x00\x00\x00\x00\x03",
            "byte 33 of 34: reason has the negative length -2",
        ),
        (HEAD + b"\x02\x00\x00\x00\x01\x01\x00", "byte 23 of 25: a block of messages has the negative length -1"),
    ],
)
def test_the_error_names_the_byte_and_the_reason(damaged: bytes, error: str) -> None:
    with pytest.raises(UndecodableRecord) as caught:
        Decoder().decode(HEADER + damaged)
    if "if_empty" not in error:
        assert str(caught.value) == error


def test_arrays_in_any_legal_form() -> None:
    """Several blocks, and blocks that say their size in bytes: other Avro libraries may write so."""
    event = Acked("/", "q", 3, ((1, 2), (5, 5)))
    record = encoded(event)
    head, tail = record[: -len(b"\x04\x02\x04\x0a\x0a\x00")], record[-len(b"\x04\x02\x04\x0a\x0a\x00") :]
    assert tail == b"\x04\x02\x04\x0a\x0a\x00"
    two_blocks = b"\x02\x02\x04\x02\x0a\x0a\x00"
    sized_block = b"\x03\x08\x02\x04\x0a\x0a\x00"
    two_sized_blocks = b"\x01\x04\x02\x04\x01\x04\x0a\x0a\x00"
    for form in (two_blocks, sized_block, two_sized_blocks):
        assert Decoder().decode(head + form)[2] == event


def test_a_prefix_from_the_first_seconds_of_1970_is_not_taken_for_another() -> None:
    """A prefix is remembered without the timestamp's first two bytes. If the timestamp has no more than two, what is
    left would also fit, one byte too early, a record with a longer timestamp: here one that is cut off."""
    decoder = Decoder()
    assert decoder.decode(encoded(Tick(), 100, Actor("b", 5))) == (100, Actor("b", 5), Tick())
    with pytest.raises(UndecodableRecord, match="user is 49 bytes long"):
        decoder.decode(HEADER + b"\xc8\x81\x02" + b"\x62" + b"\x0a\x16")


def test_a_long_need_not_be_in_its_shortest_form() -> None:
    record = encoded(Acked("/", "q", 3, ()))
    assert Decoder().decode(record[:-1] + b"\x80\x00")[2] == Acked("/", "q", 3, ())


def test_equal_bytes_give_the_same_actor_and_route() -> None:
    encoder, decoder = Encoder(), Decoder()
    other = Route("/", "flights", "dep.LGA.AA", ("lga",))
    guest, ops = Actor("guest", 7), Actor("ops", 8)
    actors_of: dict[str, set[int]] = {}
    routes_of: dict[str, set[int]] = {}
    kept = []  # so that no id is used twice
    for turn in range(40):
        actor, route = (guest, ops)[turn % 2], (ROUTE, other)[turn % 3 == 0]
        record = encoder.encode(encoder.prefix(1_763_715_845_000 + turn, actor), published(route=route))
        _, got_actor, event = decoder.decode(record)
        assert isinstance(event, Published)
        kept.append((got_actor, event))
        actors_of.setdefault(got_actor.user, set()).add(id(got_actor))
        routes_of.setdefault(event.route.routing_key, set()).add(id(event.route))
    assert {user: len(ids) for user, ids in actors_of.items()} == {"guest": 1, "ops": 1}
    assert {key: len(ids) for key, ids in routes_of.items()} == {"dep.JFK.AA": 1, "dep.LGA.AA": 1}


def test_the_caches_are_bounded() -> None:
    encoder, decoder = Encoder(), Decoder()
    for number in range(10_000):
        prefix = encoder.prefix(number, Actor(f"user-{number}", number))
        message = published(route=Route("/", "", f"key-{number}", (f"queue-{number}",)))
        ack = Acked("/", f"queue-{number}", number, ((number, number),))
        for event in (message, ack):
            assert plain(decoder.decode(encoder.encode(prefix, event))[2]) == plain(event)
    for cache in (encoder._routes, encoder._in_queues, decoder._actors, decoder._routes, decoder._in_queues):
        assert 0 < len(cache) <= 4096


class Text(str):
    """A text with a class of its own."""


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (Acked("/", "q", 2**63, ()), "does not fit into an Avro long"),
        (Nacked("/", "q", 1, (), True, "basic.nack"), "'basic.nack' is none of the methods nack, reject, recover"),
        (VhostDeleted("\ud800"), "surrogates not allowed"),
        (
            # A class of one's own is none of the types that an argument's value can have
            ExchangeDeclared(
                "/",
                "e",
                type="x",
                durable=True,
                auto_delete=False,
                internal=False,
                arguments=(Argument("a", "longstr", Text("t")),),
            ),
            "a value of type Text",
        ),
    ],
)
def test_what_the_schema_has_no_room_for_is_not_written(event: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        encoded(event)


def test_an_encrypted_body_counts_with_its_plain_size() -> None:
    record = encoded(published(b"sixteen bytes...", encryption=Encryption("person-1", "key-1", b"nonce", 3)))
    for form, bodies, stripped in ((record, True, False), (record, False, False), (strip_body(record), False, True)):
        event = Decoder().decode(form, bodies, stripped)[2]
        assert isinstance(event, Published)
        assert event.body_size == 3


def test_a_policy_may_hold_anything_that_is_json_text() -> None:
    event = PolicyApplied("/", "q", Policy("p", '{"max-length":1}', 3), None)
    assert Decoder().decode(encoded(event))[2] == event


def test_the_fast_way_and_the_judge_agree_on_damaged_hot_records() -> None:
    seeded = random.Random(5)
    hot = ("Published", "Acked", "Nacked", "Credited", "Fetched", "Tick")
    records = [sample_record(name)[HEADER_SIZE:][:120] for name in SAMPLES if name.split("-")[0] in hot]
    decoder = Decoder()
    sound, tries = 0, rounds(20_000, quick=4_000)
    for _ in range(tries):
        outcome(decoder.decode, HEADER + seeded.choice(records), False)
        damaged = bytearray(seeded.choice(records))
        for _ in range(seeded.randint(1, 3)):
            place, byte = seeded.randrange(len(damaged)), seeded.choice((0, 1, 2, 4, 0x7F, 0x80, 0xFF))
            damage = seeded.choice(("write", "flip", "insert", "delete"))
            if damage == "write":
                damaged[place] = byte
            elif damage == "flip":
                damaged[place] ^= 1 << seeded.randrange(8)
            elif damage == "insert":
                damaged.insert(place, byte)
            else:
                del damaged[place]
        sound += isinstance(assert_read_alike(decoder, bytes(damaged)), tuple)
    assert sound > tries / 20  # or the damage would only ever test the refusals


def told(decoder: Decoder, record: bytes, bodies: bool, stripped: bool) -> tuple[Any, ...]:
    """Return the fields that a decoder reads from a record, or the record's fault."""
    try:
        return plain(decoder.decode(record, bodies, stripped))
    except UndecodableRecord as error:
        return plain(error)


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_differ_only_in_bodies_are_read_as_by_a_new_decoder(seed: int) -> None:
    """Without bodies a decoder remembers plain messages; nothing that came before shows in what it reads."""
    dice, decoder, encoder = random.Random(seed), Decoder(), Encoder()
    routes = [Route("/", "", name, (name,)) for name in ("a", "b")]
    met: dict[int, Published] = {}
    shared = 0
    for turn in range(600):
        if turn % 7 == 0:
            properties = dice.choice((b"\x10\x00\x02", b"\x10\x00\x02", b"\x90\x00\x01t\x02"))
            route, persistent = dice.choice(routes), dice.random() < 0.8
        size = dice.choice((0, 1, 64, 9_000))
        sealed = dice.choice((None, None, None, None, Encryption("s", "k", b"n", 3)))
        expiration_ms = dice.choice((None, None, None, None, 7))
        event = Published(
            route,
            properties,
            expiration_ms=expiration_ms,
            persistent=persistent,
            encryption=sealed,
            body=b"x" * size,
            body_size=size,
        )
        record = encoder.encode(encoder.prefix(1_763_694_000_000 + dice.randrange(99), Actor("ann", 7)), event)
        stripped = dice.random() < 0.3
        record = strip_body(record) if stripped else record
        if dice.random() < 0.1:
            record = record[: dice.randrange(len(record))] + record[dice.randrange(len(record)) :]
        assert told(decoder, record, True, stripped) == told(Decoder(), record, True, stripped)
        assert told(decoder, record, False, stripped) == told(Decoder(), record, False, stripped)
        if told(decoder, record, False, stripped)[0] in ("UndecodableRecord", "UnknownSchema"):
            continue
        decoded = decoder.decode(record, False, stripped)
        shared += id(decoded[2]) in met
        if isinstance(decoded[2], Published):
            met[id(decoded[2])] = decoded[2]
    assert shared > 20, shared


def test_what_a_decoder_remembers_of_sessions_and_routes_is_bounded() -> None:
    encoder, decoder = Encoder(), Decoder()
    for number in range(9_000):
        prefix = encoder.prefix(1_763_694_000_000 + number, Actor("ann", number))
        for event in (published(b"x", Route("/", "", f"key-{number}", ("q",))), Acked("/", "q", number, ((1, 1),))):
            assert decoder.decode(encoder.encode(prefix, event), False)[2] is not event
    assert 1_000 < len(decoder._heads) <= 4_096
    assert 1_000 < len(decoder._latest) <= 4_096


@pytest.mark.parametrize("start", range(10, 40))
def test_a_new_decoder_takes_no_filler_for_a_part_of_a_record(start: int) -> None:
    encoder, decoder = Encoder(), Decoder()
    record = encoder.encode(encoder.prefix(1_763_694_000_000, Actor("ann", 7)), published(b"x" * 40))
    damaged = record[:start] + b"\xff" * 11 + record[start:]
    first = told(decoder, damaged, False, False)
    decoder.decode(record, False)
    assert first == told(decoder, damaged, False, False)


def test_long_routes_do_not_fill_the_memory_of_encoder_and_decoder() -> None:
    """Publishers to a fanout exchange give each message a routing key of its own."""
    encoder, decoder = Encoder(), Decoder()
    names = tuple(f"queue {number}" for number in range(10_000))
    prefix = encoder.prefix(1_763_694_000_000, Actor("ann", 1))
    for number in range(60):
        route = Route("/", "fan", f"key {number}", names)
        record = encoder.encode(prefix, Published(route, b"\0\0", persistent=True, body=b"", body_size=0))
        found = decoder.decode(record)[2]
        assert isinstance(found, Published)
        assert found.route.queues == names
        assert len(encoder._routes) * len(record) < 5_000_000
        assert len(decoder._routes) * len(record) < 5_000_000
        assert len(decoder._heads) * len(record) < 5_000_000
