"""The history that `rewindmq try` shows: a week of real departures, each at the time for which it was scheduled.

    python -m tests.demo.week        writes engine/cli/flights.zip anew

A broker on a clock of the script's own lives through the week. Departures are published by their airline's service;
desks take them, and hand late ones back once. On the 8th and 9th, in the blizzard, most flights are cancelled.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from rewindmq.engine.cli.commands.trial import HISTORY
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.effects import Deliver
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import MarkSet
from rewindmq.schemas.values import Actor
from tests.demo.flights import AIRPORTS, Flight, departures
from tests.demo.services import CARRIERS, EXCHANGE, OPEN_DESKS
from tests.support.broker_harness import Client, Harness, args

OPERATOR = Actor("guest", 0)
HOUR_MS = 3_600_000
SERVICES = [
    *(f"departures-{airport}" for airport in AIRPORTS),
    *(f"desk-{name}" for name in (*AIRPORTS, *OPEN_DESKS)),
]
UNREADABLE = "SMF"  # no desk manages a flight to Sacramento: it comes back until the delivery limit takes it
LATE_MINUTES = 120
POLICIES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("desks", r"^airport\.", {"delivery-limit": 3, "dead-letter-exchange": "dead"}),
    ("carriers", r"^carrier\.", {"max-length": 60, "dead-letter-exchange": "dead"}),
    ("board", "^board$", {"message-ttl": HOUR_MS}),
)


class Desk(Client):
    """A consumer of a queue, which settles what it holds when it is told to work."""

    def __init__(self, h: Harness, queue: str) -> None:
        super().__init__()
        self.h = h
        self.session = h.session(f"desk-{queue.partition('.')[2]}")
        self.held: list[tuple[int, Published, bool]] = []
        self.consumer: tuple[Partition, Queue, int] = h.consume(self.session, queue, self, prefetch=20)

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        self.held.append((message_id, message, effect.redelivered))

    def work(self) -> None:
        """Ack what is held, or hand it back."""
        held, self.held = self.held, []
        for message_id, message, redelivered in held:
            flight = json.loads(message.body)
            late = (flight["delay_minutes"] or 0) > LATE_MINUTES
            if flight["to"] == UNREADABLE or (late and not redelivered):
                self.h.nack(self.session, self.consumer, message_id, requeue=True)
            else:
                self.h.ack(self.session, self.consumer, message_id)


def declare(h: Harness) -> None:
    """Declare what the demo declares (services.py), and the users of the services, at the beginning of the week."""
    for name in SERVICES:
        h.broker.access.users.set(OPERATOR, name, None, ())
        h.broker.access.users.set_permissions(OPERATOR, "/", name, "", ".*", ".*")
    for name, pattern, definition in POLICIES:
        h.broker.policies.set(OPERATOR, "/", name, pattern, definition, 0, "queues")
    session = h.session("guest")
    h.exchange(session, EXCHANGE, "topic")
    h.exchange(session, "dead", "fanout")
    for airport in AIRPORTS:
        h.declare(session, f"airport.{airport}", args(x_queue_type="quorum"))
        h.bind(session, EXCHANGE, f"airport.{airport}", f"flight.{airport}.#")
    for carrier in CARRIERS:
        h.declare(session, f"carrier.{carrier}")
        h.bind(session, EXCHANGE, f"carrier.{carrier}", f"flight.*.{carrier}.*")
    for queue, key in (("board", "flight.#"), ("cancelled", "flight.*.*.cancelled")):
        h.declare(session, queue)
        h.bind(session, EXCHANGE, queue, key)
    h.declare(session, "dead.letters")
    h.bind(session, "dead", "dead.letters")
    h.settle()


def live_through(h: Harness, flights: list[Flight]) -> None:
    """Publish each flight at its time, and let the desks work in between."""
    desks = [Desk(h, f"airport.{airport}") for airport in AIRPORTS]
    desks += [Desk(h, f"carrier.{carrier}") for carrier in OPEN_DESKS]
    publishers = {airport: h.session(f"departures-{airport}") for airport in AIRPORTS}
    properties = join_by_name({"content_type": b"\x10application/json", "delivery_mode": b"\x02"})
    marked = False
    for at_ms, together in groupby(flights, lambda flight: ms_of(flight.scheduled)):
        h.pass_time(max(0, at_ms - h.now_ms))
        for desk in desks:
            desk.work()
        own = list(together)
        if not marked and any(flight.status == "cancelled" for flight in own) and "-02-08T" in own[0].scheduled:
            positions = h.broker.history.marks.positions()
            h.broker.history.marks.set(OPERATOR, MarkSet("blizzard", positions, "the first flights are cancelled"))
            marked = True
        for flight in own:
            h.publish(publishers[flight.airport], EXCHANGE, flight.routing_key, flight.body(), properties=properties)
        h.settle()
    h.pass_time(HOUR_MS)
    for _ in range(5):
        for desk in desks:
            desk.work()
        h.settle()


def ms_of(local: str) -> int:
    """Return a time of the flights (of New York, as if it were UTC) in milliseconds."""
    return round(datetime.fromisoformat(local).replace(tzinfo=UTC).timestamp() * 1000)


def files_of(data: Path) -> Iterator[Path]:
    """Yield the files of the log: a start folds them, and makes the rest anew."""
    yield from sorted(path for path in (data / "log").rglob("*") if path.is_file())


def main() -> None:
    flights = departures()
    work = Path(tempfile.mkdtemp())
    try:
        with Harness(work / "data", now_ms=ms_of(flights[0].scheduled) - HOUR_MS) as h:
            declare(h)
            live_through(h, flights)
        with ZipFile(HISTORY, "w", ZIP_LZMA) as packed:
            for path in files_of(work / "data"):
                info = ZipInfo(str(path.relative_to(work / "data")))
                info.compress_type = ZIP_LZMA
                packed.writestr(info, path.read_bytes())
        print(f"{HISTORY}: {HISTORY.stat().st_size:,} bytes, {len(flights):,} departures")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
