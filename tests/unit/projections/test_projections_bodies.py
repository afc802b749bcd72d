"""The cache of bodies keeps its books right, the keys their order, and stored bodies their schema."""

import random
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rewindmq.projections.machine.rules import versions
from rewindmq.projections.store import bodies, keys
from rewindmq.projections.store.bodies import TODAY, Body, BodyCache, size_of
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import verify_partition
from rewindmq.schemas import registry
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.single_object import HEADER_SIZE, header_of
from rewindmq.schemas.values import BROKER, Route
from tests.support.other_schema import EARLIER, EARLIER_SCHEMA
from tests.support.traffic import ListLog, Traffic, live_messages, published, record

PARSED = fastavro.parse_schema(EARLIER_SCHEMA, {})
ROUTE = Route("/", "", "q", ("q",))


def body(source: random.Random) -> Body:
    message = published(ROUTE, source.randbytes(source.randrange(200)))
    return source.choice((message, TODAY.of(message)))


@pytest.mark.parametrize("seed", range(5))
def test_the_books_are_right_and_the_bound_holds(seed: int) -> None:
    source = random.Random(seed)
    cache = BodyCache(12_000)
    for _ in range(400):
        queue_id = source.randrange(4)
        pick = source.random()
        if pick < 0.6:
            first = source.randrange(40)
            cache.add(queue_id, {each: body(source) for each in range(first, first + source.randrange(12))})
        elif pick < 0.9:
            cache.drop(queue_id, [source.randrange(50) for _ in range(5)])
        else:
            cache.drop_queue(queue_id)
        assert cache.used_bytes == sum(size_of(each.values()) for each in cache.queues.values())
        assert cache.used_bytes <= cache.limit_bytes


def test_a_body_comes_back_as_it_was_however_it_is_cached() -> None:
    message = published(ROUTE, b"body")
    cache = BodyCache(10_000)
    cache.add(1, {5: message})
    cache.add(2, {5: TODAY.of(message)})
    for queue_id in (1, 2):
        found = cache.get(queue_id, 5)
        assert found is not None
        assert record(found) == record(message)
    assert cache.get(1, 6) is None
    assert cache.get(3, 5) is None
    cache.drop(1, [5])
    assert cache.get(1, 5) is None
    cache.drop_queue(2)
    assert cache.get(2, 5) is None
    assert cache.used_bytes == 0


def test_keys_sort_by_partition_kind_queue_and_number() -> None:
    one, other = keys.partition_prefix("queues-1"), keys.partition_prefix("queues-10")
    wanted = [
        keys.FORMAT,
        keys.applied(one),
        keys.chunk(one, 7, -2),
        keys.chunk(one, 7, -1),
        keys.chunk(one, 7, 0),
        keys.chunk(one, 7, 300),
        keys.chunk(one, 256, 0),
        keys.head(one),
        keys.message(one, 7, 255),
        keys.message(one, 7, 256),
        keys.message(one, 8, 1),
        keys.message(one, keys.SHARED, 1),
        keys.queue(one, 7),
        keys.shared(one, 0),
        keys.applied(other),
    ]
    assert sorted(random.Random(1).sample(wanted, len(wanted))) == wanted
    first = keys.messages(one, 7)
    assert first < keys.message(one, 7, 0) < keys.message(one, 7, 2**63) < keys.past(first)
    assert keys.chunk_number_of(keys.chunk(one, 7, -2)) == -2
    assert keys.queue_id_of(keys.queue(one, 256), one) == 256
    assert keys.message_id_of(keys.message(one, 7, 256)) == 256


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (keys.applied(b"queues-0\0"), "queues-0 applied offset"),
        (keys.head(b"queues-0\0"), "queues-0 head"),
        (keys.queue(b"queues-0\0", 5), "queues-0 queue queue_id=5"),
        (keys.chunk(b"queues-0\0", 5, -1), "queues-0 ready messages queue_id=5 chunk=-1"),
        (keys.message(b"queues-0\0", 5, 17), "queues-0 message queue_id=5 id=17"),
        (keys.message(b"queues-0\0", keys.SHARED, 17), "queues-0 message shared id=17"),
        (keys.shared(b"queues-0\0", 17), "queues-0 holders of shared messages id=17"),
        (b"queues-0\0Z", "queues-0 unknown kind 0x5a"),
    ],
)
def test_keys_say_what_they_are(key: bytes, text: str) -> None:
    assert keys.describe(key, b"queues-0\0") == text


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_cannot_stand_in_a_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must not be empty or hold NUL"):
        keys.partition_prefix(name)


@pytest.mark.usefixtures("earlier_schema")
def test_b73_bodies_are_stored_under_the_schema_of_the_machine_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that knows no later version reads them, and this one reads all: its own and those of before."""
    today = registry.envelope_fingerprint()
    monkeypatch.setattr(versions, "SCHEMAS", {1: EARLIER, 2: today})
    for module in ("machine.machine", "machine.serialization.load"):
        monkeypatch.setattr(f"rewindmq.projections.{module}.MACHINE_VERSION", 2)
    form = bodies.Form(today)
    for module in ("bodies", "projector"):
        monkeypatch.setattr(f"rewindmq.projections.store.{module}.TODAY", form)
    monkeypatch.setattr("rewindmq.projections.verify.TODAY", form)
    store, log = StateStore.open(tmp_path), ListLog()
    machine, projector = store.open_partition("queues-0")
    traffic = Traffic(3, machine, projector, log=log)
    for version in (1, 2):
        traffic.append(BROKER, MachineUpgraded(version))
        traffic.run(200)
        traffic.end_turn()
        projector.write(projector.prepare())
        stored = [value for _, value in store.scan(keys.partition_prefix("queues-0") + b"M")]
        assert stored
        assert {value.startswith(form.stamp) for value in stored} == ({False} if version == 1 else {False, True})
        for value in stored:
            if not value.startswith(form.stamp):
                assert value.startswith(header_of(EARLIER))
                read: Any = fastavro.schemaless_reader(
                    BytesIO(value[HEADER_SIZE:]), PARSED, None, return_record_name=True
                )
                assert read["event"][0].endswith(".Published")
        assert verify_partition(log, store).differences == []
    for queue_id, message_id in live_messages(machine):
        assert record(projector.message(queue_id, message_id)) == record(traffic.bodies[message_id])
    store.close()
