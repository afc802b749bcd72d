"""A broker with days of history in small segments. Messages of every kind are still queued from its first day."""

from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.trim_rules import TrimReport, TrimRequest
from rewindmq.engine.partition.sessions import Session
from rewindmq.schemas.events import Published
from tests.support.broker_harness import PERSISTENT, Client, Harness, args
from tests.support.records import SCHEMA_BYTES

DAY_MS = 86_400_000
SEGMENT_BYTES = SCHEMA_BYTES + 16_200
QUEUES = {
    "orders": args(),
    "urgent": args(x_max_priority=5),
    "counted": args(x_queue_type="quorum"),
    "kept": args(x_queue_type="stream"),
    "mortal": args(x_dead_letter_exchange="", x_dead_letter_routing_key="dead"),
    "dead": args(),
}
DAYS = 4


@dataclass(frozen=True, slots=True)
class Story:
    """`ready`: the bodies that are ready at the end. `days`: the time at which each day begins."""

    ready: dict[str, list[bytes]]
    days: list[int]
    end_ms: int


def live(data: Path, now_ms: int = 1_700_000_000_000) -> Story:
    """Run a broker for some days from `now_ms` on, with a stop between, and stop it."""
    with Harness(data, partitions=1, segment_bytes=SEGMENT_BYTES, now_ms=now_ms) as h:
        days = []
        for day in range(DAYS):
            days.append(h.now_ms)
            _live_a_day(h, day)
            h.pass_time(DAY_MS - 60_000)
            h.restart()
            h.now_ms += 60_000
        return Story({name: h.ready(name) for name in QUEUES}, days, h.now_ms)


def _live_a_day(h: Harness, day: int) -> None:
    session = h.session()
    for name, arguments in QUEUES.items():
        h.declare(session, name, arguments)
    for number in range(60):
        for name in QUEUES:
            if name != "dead":
                _publish(
                    h,
                    session,
                    name,
                    b"%s %d %d " % (name.encode(), day, number) + b"." * 100,
                    number % 7 if name == "urgent" else None,
                )
        if number % 10 == 9:
            h.pass_time(1_000)
    h.settle()
    for name in ("orders", "counted", "urgent"):
        client = Client()
        consumer = h.consume(session, name, client, prefetch=30)
        h.settle()
        ids = [delivery[1] for delivery in client.deliveries]
        h.ack(session, consumer, *ids[:10])
        h.nack(session, consumer, *ids[10:15], requeue=True)
        h.settle()
    client = Client()
    consumer = h.consume(session, "mortal", client, prefetch=20)
    h.settle()
    h.nack(session, consumer, *[delivery[1] for delivery in client.deliveries][:5])
    h.settle()
    h.broker.sessions.close(session)
    h.settle()


def _publish(h: Harness, session: Session, name: str, body: bytes, priority: int | None) -> None:
    for destination in h.broker.exchanges.route(session, "", name, None):
        message = Published(
            destination.route, PERSISTENT, priority=priority, persistent=True, body=body, body_size=len(body)
        )
        destination.partition.publish(session.actor, message)


def trimmed(data: Path, story: Story, day: int, reason: str = "") -> TrimReport:
    """Trim what is older than a day's beginning. Returns the report of the one partition."""
    [report] = trim_directory(data, TrimRequest(before_ms=story.days[day], reason=reason), wall_ms=story.end_ms)
    return report
