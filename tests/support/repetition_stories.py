"""Short histories of publishes and acks that are alike, and of what makes one of them special."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import (
    Acked,
    ConsumerCancelled,
    Credited,
    Event,
    NodeLost,
    Published,
    QueueDeleted,
    Tick,
)
from rewindmq.schemas.single_object import HEADER
from rewindmq.schemas.values import BROKER, EPOCH_SHIFT, Actor, Argument, Deduplication, Route
from tests.support.events_for_tests import VHOST, attached, declared, route, route_once, text_id
from tests.support.repetition import FIRST_MS, RepeatedLog

ANN, BEN = Actor("ann", 1 << EPOCH_SHIFT | 1), Actor("ben", 2 << EPOCH_SHIFT | 1)
PLAIN_SIZE = 3


class Story:
    """A log that grows by an event or by bytes."""

    def __init__(self, now_ms: int = FIRST_MS) -> None:
        self.log = RepeatedLog()
        self.now_ms = now_ms

    def do(self, event: Event, actor: Actor = ANN) -> int:
        offset = len(self.log.records)
        self.log.add(offset, self.now_ms, actor, event, self.now_ms + offset)
        return offset

    def raw(self, record: bytes) -> None:
        self.log.add_record(len(self.log.records), self.now_ms, record)

    def record(self, event: Event, actor: Actor = ANN) -> bytes:
        encoder = Encoder()
        return encoder.encode(encoder.prefix(self.now_ms, actor), event)

    def declare(self, name: str = "q", type: str = "classic", semantics: str = "rabbitmq-3.13", **given: int) -> None:
        arguments = tuple(Argument("x-" + key.replace("_", "-"), "long", value) for key, value in given.items())
        self.do(declared(VHOST, name, type=type, durable=True, arguments=arguments, semantics=semantics))

    def consume(
        self,
        number: int,
        prefetch: int = 100,
        priority: int = 0,
        actor: Actor = ANN,
        name: str = "q",
        channel: int = 1,
        limit: int = 0,
    ) -> None:
        event = attached(
            VHOST,
            name,
            number,
            channel=channel,
            tag="tag",
            prefetch=prefetch,
            priority=priority,
            global_prefetch=limit,
        )
        self.do(event, actor)

    def publish(self, count: int = 1, name: str = "q", actor: Actor = ANN) -> list[int]:
        return [self.do(published(name), actor) for _ in range(count)]

    def ack(self, *message_ids: int, consumer: int = 1, actor: Actor = ANN) -> None:
        for message_id in message_ids:
            self.do(acked((message_id, message_id), consumer=consumer), actor)


def published(name: str = "q", body: bytes = bytes(PLAIN_SIZE), properties: bytes = b"\x00\x00") -> Published:
    return Published(route(name), properties, persistent=True, body=body, body_size=len(body))


def acked(*ranges: tuple[int, int], consumer: int = 1) -> Acked:
    return Acked(VHOST, "q", consumer, ranges)


def the_holder_is_detached(story: Story) -> None:
    story.declare()
    story.consume(1)
    held = story.publish(3)
    story.do(ConsumerCancelled(VHOST, "q", 1))
    story.ack(*held)


def the_active_consumer_gives_way(story: Story) -> None:
    single = (Argument("x-single-active-consumer", "bool", True),)
    story.do(declared(VHOST, "q", type="quorum", durable=True, arguments=single, semantics="rabbitmq-4.3"))
    story.consume(1)
    held = story.publish(3)
    story.consume(2, priority=5)
    story.ack(*held)
    story.publish(2)


def a_lost_node_acks(story: Story) -> None:
    story.declare()
    story.consume(1, actor=BEN)
    held = story.publish(4, actor=BEN)
    story.do(NodeLost("a", 1, "lapsed"), BROKER)
    story.ack(*held, actor=ANN)


def a_lost_node_publishes(story: Story) -> None:
    story.declare()
    story.do(NodeLost("a", 1, "lapsed"), BROKER)
    story.publish(2, actor=BEN)
    story.publish(4)


def the_last_room_of_a_quorum_queue(story: Story) -> None:
    story.declare(type="quorum")
    story.consume(1, prefetch=2)
    story.publish(2)


def the_last_room_of_a_classic_queue(story: Story) -> None:
    story.declare()
    story.consume(1, prefetch=2)
    story.publish(2)


def a_route_without_queues(story: Story) -> None:
    story.declare()
    for _ in range(4):
        story.do(Published(Route(VHOST, "x", "k", ()), b"\x00\x00", persistent=True, body=b"x", body_size=1))
    story.publish(2)


def no_room(story: Story) -> None:
    story.declare()
    story.consume(1, prefetch=2)
    story.publish(5)


def two_consumers_take_turns(story: Story) -> None:
    story.declare()
    story.consume(1)
    story.consume(2)
    story.publish(5)


def consumers_take_turns_until_one_has_no_room(type: str) -> Callable[[Story], None]:
    """Each consumer has a channel of its own. One is also under a shared limit, and the last has a lower priority."""

    def tell(story: Story) -> None:
        story.declare("q", type)
        for number, prefetch in enumerate((4, 100, 3, 100), 1):
            limit = 2 if number == 4 and type == "classic" else 0
            story.consume(number, prefetch, -1 if number == 4 else 0, channel=number, limit=limit)
        held = story.publish(7)
        story.ack(*held[0:4:3], consumer=1)
        story.publish(30)

    tell.__name__ = f"consumers_of_a_{type}_queue_take_turns"
    return tell


def queues_with_several_consumers(story: Story) -> None:
    for number, name in enumerate("qr"):
        story.declare(name)
        for channel in range(1, 4):
            story.consume(10 * number + channel, name=name, channel=channel)
    for _ in range(8):
        story.do(Published(route("q", "r"), b"\x00\x00", persistent=True, body=b"abc", body_size=3))


def another_queue_expires(story: Story) -> None:
    """Publishes to a queue that is gone, which a publish to another queue let expire."""
    story.declare("brief", expires=1_000)
    story.declare()
    story.publish(2, "brief")
    story.publish(2)
    story.now_ms += 1_000
    story.publish(1)
    story.publish(3, "brief")


def a_deadline_comes_with_the_repeat(story: Story) -> None:
    story.declare("brief", expires=1_000)
    story.declare()
    story.publish(2)
    story.now_ms += 1_000
    story.publish(1)


def a_service_writes_damaged_properties(story: Story) -> None:
    story.declare()
    service = Actor("service", 0)
    for properties in (b"\x00\x00", b"\x00\x00", b"\x00\x01\x03abc"):
        story.do(published(properties=properties), service)


def another_event_comes_between(story: Story) -> None:
    """The queue is declared anew, so the next record is to another queue of this name."""
    story.declare()
    story.publish(2)
    story.do(QueueDeleted(VHOST, "q", False, False))
    story.publish(2)
    story.declare(max_length=1)
    story.publish(3)


def time_goes_back(story: Story) -> None:
    story.declare()
    story.publish(2)
    for step in (5, -7, 3, 8_192, -9_000):
        story.now_ms += step
        story.publish(2)


def a_timestamp_of_one_byte(story: Story) -> None:
    story.now_ms = 5
    story.declare()
    story.publish(2)
    story.raw(HEADER + b"\x8a\x80" + story.record(published())[12:])


def the_queue_is(type: str, **given: int) -> Callable[[Story], None]:
    def tell(story: Story) -> None:
        story.declare("q", type, "rabbitmq-3.13", **given)
        story.publish(2)
        story.now_ms += 2_000
        story.publish(2)
        story.do(Tick(), BROKER)
        story.publish(2)
        story.consume(1, prefetch=3)
        story.ack(5, 6)
        story.publish(2)

    tell.__name__ = "_".join(("the_queue_is", type, *given))
    return tell


def consumers_with_credit(story: Story) -> None:
    """The first one takes without acks, the second one with them; both come to the end of their credit."""
    for number, no_ack in enumerate((True, False), 1):
        name = f"q{number}"
        story.declare(name)
        story.do(attached(VHOST, name, number, channel=1, tag="tag", no_ack=no_ack, credit=3))
        story.publish(5, name)
        story.do(Credited(VHOST, name, number, 3))
        story.publish(2, name)


def a_route_has_two_queues(story: Story) -> None:
    story.declare("q")
    story.declare("r")
    for _ in range(3):
        story.do(Published(route("q", "r"), b"\x00\x00", persistent=True, body=b"abc", body_size=3))


def transient_messages(story: Story) -> None:
    for type in ("classic", "quorum"):
        story.declare(type, type)
        for _ in range(2):
            story.do(Published(route(type), b"\x00\x00", body=b"abc", body_size=3))


def a_channel_has_a_limit(story: Story) -> None:
    """Two consumers of a channel share it, so an ack of one lets the other take a message."""
    story.declare("q")
    story.declare("r")
    for number, name in enumerate(("q", "r"), 1):
        story.do(attached(VHOST, name, number, channel=1, tag="tag", prefetch=100, global_prefetch=3))
    held = story.publish(3)
    story.publish(2, "r")
    story.ack(*held)
    story.publish(5)


def a_limit_binds_consumers_of_two_queues(story: Story) -> None:
    for number, name in enumerate("qr", 1):
        story.declare(name)
        story.consume(number, name=name, limit=5)
    for _ in range(8):
        story.do(Published(route("q", "r"), b"\x00\x00", persistent=True, body=b"abc", body_size=3))


def a_held_message_has_an_expiry(story: Story) -> None:
    story.declare()
    story.consume(1)
    held = story.publish(1)
    event = published()
    held += [
        story.do(Published(event.route, b"", expiration_ms=10_000, persistent=True, body=b"abc", body_size=3))
        for _ in range(2)
    ]
    story.ack(*held)


def ready_messages_follow_an_ack(story: Story) -> None:
    story.declare()
    story.consume(1, prefetch=2)
    held = story.publish(6)
    story.ack(*held)
    story.publish(4)


def an_ack_lets_a_message_expire(story: Story) -> None:
    """It is due already, but it stood behind another one."""
    story.declare()
    story.consume(1, prefetch=1)
    held = story.publish(3)
    story.ack(held[0])
    story.do(Published(route("q"), b"", expiration_ms=1_000, persistent=True, body=b"abc", body_size=3))
    story.now_ms += 2_000
    story.ack(held[1])


def the_time_ends_alike(story: Story) -> None:
    """An ack and a publish whose timestamps have the first two bytes in common, and the others not."""
    late_ms = (story.now_ms | 0x1FFF) + 1
    story.declare()
    story.consume(1)
    story.now_ms = late_ms
    held = story.publish(5)
    story.now_ms = late_ms - 8_192 + 5_000
    story.ack(*held[:3])
    story.now_ms = late_ms + 5_000
    story.publish(1)


def the_clock_is_ahead(story: Story) -> None:
    story.do(ClockSet(5_000, story.now_ms), BROKER)
    story.declare("brief", expires=1_000)
    story.declare()
    story.publish(2)
    story.now_ms += 900
    story.publish(2)
    story.now_ms += 100
    story.publish(2)


def a_queue_drops_duplicates(story: Story) -> None:
    once = (Argument("x-message-deduplication", "bool", True),)
    story.do(declared(VHOST, "q", durable=True, arguments=once))
    story.consume(1, prefetch=9)
    held = [story.do(published(properties=text_id(text))) for text in "abcaad"]
    story.ack(held[0], held[1], held[2])
    for text in "adda":
        story.do(published(properties=text_id(text)))


def an_exchange_drops_duplicates(story: Story) -> None:
    story.declare()
    once = route_once(Deduplication("once", 2, None), "q")
    for text in "abacba":
        story.do(replace(published(properties=text_id(text)), route=once))


def another_schema(story: Story) -> None:
    """Records that are of no schema that was ever released."""
    story.declare()
    story.publish(2)
    record = story.log.records[-1]
    for at in (0, 2, 9):
        story.raw(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
    story.publish(1)


STORIES: tuple[Callable[[Story], None], ...] = (
    the_holder_is_detached,
    the_active_consumer_gives_way,
    a_lost_node_acks,
    a_lost_node_publishes,
    the_last_room_of_a_quorum_queue,
    the_last_room_of_a_classic_queue,
    a_route_without_queues,
    no_room,
    two_consumers_take_turns,
    consumers_take_turns_until_one_has_no_room("classic"),
    consumers_take_turns_until_one_has_no_room("quorum"),
    queues_with_several_consumers,
    another_queue_expires,
    a_deadline_comes_with_the_repeat,
    a_service_writes_damaged_properties,
    another_event_comes_between,
    time_goes_back,
    a_timestamp_of_one_byte,
    the_queue_is("stream"),
    the_queue_is("classic", message_ttl=5_000),
    the_queue_is("classic", max_length=2),
    the_queue_is("classic", max_length_bytes=10),
    the_queue_is("classic", max_priority=5),
    the_queue_is("quorum"),
    the_queue_is("quorum", delivery_limit=2),
    consumers_with_credit,
    a_route_has_two_queues,
    transient_messages,
    a_channel_has_a_limit,
    a_limit_binds_consumers_of_two_queues,
    a_held_message_has_an_expiry,
    ready_messages_follow_an_ack,
    an_ack_lets_a_message_expire,
    the_time_ends_alike,
    the_clock_is_ahead,
    a_queue_drops_duplicates,
    an_exchange_drops_duplicates,
    another_schema,
)


def odd_publishes(story: Story) -> Iterator[bytes]:
    """Records that begin as a plain publish of 3 bytes does, and go on in another way."""
    plain = story.record(published())
    long_body, long_properties = story.record(published(body=bytes(90))), story.record(published(properties=bytes(90)))
    body, flags = len(plain) - PLAIN_SIZE - 1, len(plain) - PLAIN_SIZE - 6
    yield plain[:-1]
    yield plain + b"\x00"
    yield plain[:body] + b"\x07" + plain[body + 1 :]  # a negative size
    yield plain[:body] + b"\x86\x00" + plain[body + 1 :]  # a size in more bytes than it needs
    yield plain[:body] + b"\x86\x80\x00" + plain[body + 1 :]
    yield plain[: body + 1]
    yield plain[:body]
    properties = flags - 3
    assert plain[properties:flags] == b"\x04\x00\x00"
    yield plain[:properties] + b"\x05" + plain[properties + 1 :]
    yield plain[:properties] + b"\x84\x00" + plain[properties + 1 :]
    yield plain[: properties + 1]
    for at in range(5):
        for byte in (1, 2, 3):
            yield plain[: flags + at] + bytes([byte]) + plain[flags + at + 1 :]
    yield plain[:flags] + b"\x02\x14" + plain[flags + 1 :]  # it expires
    yield plain[:flags] + b"\x00\x02\x14" + plain[flags + 2 :]  # it has a priority
    yield from (long_body, long_properties)
    for at in (10, 11):
        yield plain[:at] + bytes([plain[at] & 0x7F]) + plain[at + 1 :]
    yield plain[:10] + bytes([plain[10] + 20 | 1]) + plain[11:]  # ten milliseconds later, but before 1970


def logs() -> Iterator[tuple[str, RepeatedLog]]:
    """Every story, by name; then a story for each odd record, between repeats."""
    for tell in STORIES:
        story = Story()
        tell(story)
        story.do(Tick(), BROKER)
        yield tell.__name__, story.log
    story = Story()
    for number in range(len(list(odd_publishes(story)))):
        story = Story()
        story.declare()
        story.publish(2)
        story.raw(list(odd_publishes(story))[number])
        story.publish(1)
        yield f"odd publish {number}", story.log
