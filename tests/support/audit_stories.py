"""Seeded stories of a real broker that restores, is killed, sets marks and has queues of every kind.

Its log is audited without Spark: an honest history has no finding.

    python -m tests.support.audit_stories SEEDS [FIRST]      thousands, with counts of the steps
"""

import contextlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.rewind.restorations import Restoration
from rewindmq.engine.rewind.restore_plan import FATES, LOST, THERE, UNDONE_FATES, NoPlan, RestoreRequest, name_of
from rewindmq.engine.rewind.worker import Question, WorkerPool
from rewindmq.projections.rewind import At
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import MarkSet
from rewindmq.schemas.values import Actor, Argument
from rewindmq.spark_replay.audit.checks import Finding
from tests.support.auditing import findings_of
from tests.support.broker_harness import Client, Harness, args

KINDS: dict[str, tuple[Argument, ...]] = {
    "classic": (),
    "limited": args(x_max_length=4, x_dead_letter_exchange="dlx"),
    "priorities": args(x_max_priority=3),
    "single": args(x_single_active_consumer=True),
    "quorum": args(x_queue_type="quorum"),
    "quorum-limited": args(x_queue_type="quorum", x_delivery_limit=2, x_dead_letter_exchange="dlx"),
    "quorum-single": args(x_queue_type="quorum", x_single_active_consumer=True),
    "later": args(x_queue_type="quorum", x_semantics="rabbitmq-4.3"),
    "later-retry": args(
        x_queue_type="quorum", x_semantics="rabbitmq-4.3", x_delayed_retry_type="all", x_delayed_retry_min=20
    ),
    "later-single": args(x_queue_type="quorum", x_semantics="rabbitmq-4.3", x_single_active_consumer=True),
    "stream": args(x_queue_type="stream"),
    "dead": (),
}
TAKEN = [name for name in KINDS if name != "stream"]
POLICIES: list[dict[str, object]] = [
    {"max-length": 5},
    {"message-ttl": 60},
    {"delivery-limit": 1},
    {"max-length": 3, "overflow": "reject-publish"},
    {"dead-letter-exchange": "dlx", "message-ttl": 30},
]
T = TypeVar("T")
HIDDEN = "amq.delayed.wait"


class Past(WorkerPool):
    """The process that reads the past, in this process."""

    async def ask(self, question: Question[T], user: str) -> T:
        return question.answer()


class Story:
    """A story. `met` counts its steps, so that a test can check that each kind came."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.dice = random.Random(f"audit {seed}")
        self.directory = directory
        self.lives = 0
        self.met: Counter[str] = Counter()
        self.h = Harness(self.data, partitions=3, snapshot_events=self.dice.choice((100, 10_000)))
        self.begin()
        session = self.sessions[0]
        self.h.exchange(session, "dlx", "fanout")
        self.h.exchange(session, "wait", "x-delayed-message", arguments=args(x_delayed_type="direct"))
        for name, arguments in KINDS.items():
            self.h.declare(session, name, arguments)
            self.h.bind(session, "wait", name, name)
        self.h.bind(session, "dlx", "dead")

    @property
    def data(self) -> Path:
        return self.directory / f"life-{self.lives}"

    def begin(self) -> None:
        self.sessions = [self.h.session() for _ in range(3)]
        self.consumers: list[tuple[Any, Client, Any]] = []

    def tell(self, steps: int) -> None:
        actions = {
            self.publish: 30,
            self.consume: 8,
            self.settle: 22,
            self.fetch: 8,
            self.cancel: 4,
            self.policy: 4,
            self.wait: 6,
            self.close: 3,
            self.purge: 4,
            self.delete: 2,
            self.restore: 5,
            self.mishap: 8,
            self.mark: 2,
            self.crash: 2,
            self.restart: 1,
            self.turn: 8,
        }
        for action in self.dice.choices(list(actions), list(actions.values()), k=steps):
            with contextlib.suppress(AmqpError):  # refused, as a client may be
                action()

    def turn(self) -> None:
        self.h.settle()

    def end(self) -> None:
        self.turn()
        self.h.__exit__()

    # -- steps of clients ----------------------------------------------------------------------------------------------

    def name(self) -> str:
        return self.dice.choice(list(KINDS))

    def publish(self) -> None:
        dice, session = self.dice, self.dice.choice(self.sessions)
        for _ in range(dice.randint(1, 4)):
            name, body = self.name(), b"x" * dice.randint(0, 9)
            exchange = dice.choice(("", "", "", "wait"))
            if exchange and self.h.broker.queues.get("/", HIDDEN) is None:
                continue
            delay = dice.choice((15, 90)) if exchange else dice.choice((None, None, None, 0, 50))
            destinations = self.h.broker.exchanges.route(session, exchange, HIDDEN if exchange else name, None)
            for destination in destinations:
                destination.partition.publish(
                    session.actor,
                    Published(
                        destination.route,
                        b"\x10\x00\x02",
                        expiration_ms=delay,
                        priority=dice.choice((None, 0, 2, 9)),
                        persistent=dice.random() < 0.8,
                        body=body,
                        body_size=len(body),
                    ),
                )

    def consume(self) -> None:
        session, client, no_ack = self.dice.choice(self.sessions), Client(), self.dice.random() < 0.2
        name, channel = self.dice.choice(TAKEN), self.dice.randint(1, 2)
        arguments = args(x_priority=self.dice.randint(0, 2))
        prefetch, shared = self.dice.randint(0, 3), self.dice.choice((0, 0, 2))
        consumer = self.h.consume(session, name, client, prefetch, no_ack, channel, False, shared, arguments)
        if not no_ack:
            self.consumers.append((session, client, consumer))

    def settle(self) -> None:
        if not self.consumers:
            return
        session, client, consumer = self.dice.choice(self.consumers)
        self.h.in_loop(self.h.broker.turns.end)
        taken = [client.deliveries.pop(0)[1] for _ in range(min(self.dice.randint(1, 3), len(client.deliveries)))]
        if taken and self.dice.random() < 0.5:
            self.h.ack(session, consumer, *taken)
        elif taken:
            self.h.nack(session, consumer, *taken, requeue=self.dice.random() < 0.7)

    def fetch(self) -> None:
        session, client, name = self.dice.choice(self.sessions), Client(), self.dice.choice(TAKEN)
        self.h.broker.consumers.fetch(session, 2, client, name, self.dice.random() < 0.4)

    def cancel(self) -> None:
        if self.consumers:
            session, _, (partition, queue, consumer) = self.dice.choice(self.consumers)
            self.h.broker.consumers.cancel(session, partition, queue, consumer)

    def close(self) -> None:
        index = self.dice.randrange(len(self.sessions))
        session = self.sessions[index]
        if self.dice.random() < 0.5:
            self.h.broker.sessions.close_channel(session, self.dice.randint(1, 2))
        else:
            self.h.broker.sessions.close(session)
            self.sessions[index] = self.h.session()
        self.consumers = [each for each in self.consumers if each[0] is not session]

    # -- steps of operators --------------------------------------------------------------------------------------------

    def policy(self) -> None:
        if self.dice.random() < 0.4:
            self.h.broker.policies.clear(Actor("guest", 0), "/", "p")
        else:
            pattern = self.dice.choice(("classic", "quorum", "later", "."))
            self.h.broker.policies.set(Actor("guest", 0), "/", "p", pattern, self.dice.choice(POLICIES), 1, "queues")

    def wait(self) -> None:
        self.h.pass_time(self.dice.choice((1, 10, 100, 500)))

    def purge(self) -> None:
        self.h.broker.queues.purge(self.sessions[0], self.dice.choice(TAKEN))

    def delete(self) -> None:
        name = self.name()
        self.h.broker.queues.delete(self.sessions[0], name, False, False)
        if self.dice.random() < 0.5:
            self.h.declare(self.sessions[0], name, KINDS[name])

    def mark(self) -> None:
        positions = self.h.broker.history.marks.positions()
        self.h.settle()
        self.h.broker.history.marks.set(Actor("guest", 0), MarkSet(f"m{self.lives}", positions))
        self.met["marks"] += 1

    def mishap(self) -> None:
        """Purge or delete messages that wait, perhaps crash, and bring them back."""
        name, session = self.dice.choice(TAKEN), self.sessions[0]
        for _ in range(self.dice.randint(1, 3)):
            self.h.publish(session, "", name, b"mishap")
        if self.dice.random() < 0.3:
            self.h.settle()
            self.crash()
            session = self.sessions[0]
        if self.dice.random() < 0.7:
            self.h.broker.queues.purge(session, name)
            self.restore_from(name, "purge")
        else:
            self.h.broker.queues.delete(session, name, False, False)
            self.restore_from(name, "delete")

    def restore(self) -> None:
        """Restore the messages of a purge or a deletion, or a queue as it was at some offset."""
        self.restore_from(self.dice.choice(TAKEN), self.dice.choice(("purge", "delete", "", "")))

    def restore_from(self, source: str, undo: str) -> None:
        """Restore into the queue itself or into another queue."""
        dice, h = self.dice, self.h
        h.settle()
        history = InDirectory(h.config.data)
        target = dice.choice((source, source, self.name()))
        fates: tuple[str, ...] = UNDONE_FATES.get(undo, dice.choice((LOST, FATES)))
        if target == source:
            fates = tuple(fate for fate in fates if fate not in THERE)
        there = h.broker.queues.partition_for("/", source).machine.next_offset
        at = None if undo else At(offset=dice.randint(0, there))
        plan = RestoreRequest(history, "/", source, at=at, undo=undo, fates=fates, ids=frozenset()).answer()
        if isinstance(plan, NoPlan):
            return
        restoration = Restoration("guest", plan, target, name_of(plan))
        done = h.loop.run_until_complete(
            h.broker._broker.history.restorations.restore(self.sessions[0], Past(), history, restoration)
        )
        self.met.update(restored=done.restored, repeated=done.duplicates, declared=done.declared)
        self.met["restored from classic to quorum"] += (
            done.restored if "quorum" not in source and target.startswith(("quorum", "later")) else 0
        )

    def crash(self) -> None:
        """Kill the broker. The next life goes on with the durable events."""
        self.lives += 1
        after = self.h.killed_copy(self.data)
        self.h.__exit__()
        self.h = after
        self.begin()
        self.met["crashes"] += 1

    def restart(self) -> None:
        self.h.restart()
        self.begin()


def audited_story(seed: int, directory: Path, steps: int = 160) -> tuple[list[Finding], Counter[str]]:
    """The findings of an audit of a story, and the counts of its steps."""
    story = Story(seed, directory)
    story.tell(steps)
    story.end()
    findings = findings_of(story.data)
    story.met["checks"] = len({finding.check for finding in findings})
    return [finding for finding in findings if not finding.ok], story.met


def main() -> int:
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    met: Counter[str] = Counter()
    convicted = 0
    for seed in range(first, first + int(sys.argv[1])):
        directory = Path(tempfile.mkdtemp(prefix="audit-story-"))
        bad, counts = audited_story(seed, directory)
        met += counts
        if bad:
            convicted += 1
            print(f"seed {seed}: {bad[0]}, and {len(bad) - 1} more", flush=True)
        shutil.rmtree(directory)
    print(f"{convicted} honest histories convicted; {dict(met)}")
    return 1 if convicted else 0


if __name__ == "__main__":
    sys.exit(main())
