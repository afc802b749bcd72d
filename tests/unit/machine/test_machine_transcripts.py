"""Transcripts: what is asked on lines at the margin, what comes of it indented below, written by the machine.

    REWRITE_TRANSCRIPTS=1 pytest tests/unit/machine/test_machine_transcripts.py     writes the answers anew; review it

    declare QUEUE [type=quorum] [max_length=2] ... [policy.max_length=3] [operator.max_length=1] [transient]
        [auto_delete] [owner=SESSION] [session=1]
    policy QUEUE [key=value ...] | operator QUEUE ...      publish QUEUE[,QUEUE] [size=1] [expiration=MS] [transient]
    attach NAME QUEUE [prefetch=1 | credit=1 no_ack] [exclusive] [shared=1] [priority=0] [session=1] [channel=1]
    qos COUNT [session=1] [channel=1]   (global)
    ack|nack|reject|drop NAME MESSAGE ...   (drop: nack without requeue)        credit NAME COUNT     cancel NAME
    get NAME QUEUE [no_ack] [session=1]    purge QUEUE [session=1]    delete QUEUE [session=1]
    remove QUEUE MESSAGE ... [to=EXCHANGE] [session=1]    pause QUEUE    resume QUEUE
    close SESSION [CHANNEL]    wait MS    start [after_crash]    lost EPOCH
    forwarded QUEUE SEQUENCE   upgrade VERSION   show QUEUE                     # a comment

A session is a number, or EPOCH.NUMBER: of the node whose life that is. Messages are called m1, m2 ... in the
order of their publishing.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    ConsumerAttached,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Nacked,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.schemas.values import Actor, Policy
from tests.support.events_for_tests import START_MS, VHOST, arguments, policy, route

TRANSCRIPTS = Path(__file__).with_name("transcripts")


def split(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in words if "=" not in word]
    return plain, dict(word.split("=", 1) for word in words if "=" in word)


def value(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def session_of(keys: dict[str, str], name: str = "session", default: str = "1") -> int:
    epoch, _, number = keys.pop(name, default).rpartition(".")
    return int(epoch or "0") << 24 | int(number)


class Called(describe.Names):
    """Messages and consumers by the names that the transcript gives them, times from its beginning on."""

    def __init__(self) -> None:
        self.of_messages: dict[int, str] = {}
        self.of_consumers: dict[int, str] = {}

    def messages(self, ids: Iterable[int]) -> str:
        return " ".join(self.of_messages[message_id] for message_id in ids)

    def consumer(self, consumer: int) -> str:
        return self.of_consumers[consumer]

    def time(self, time_ms: int) -> str:
        return f"{time_ms - START_MS} ms"


class Stage:
    def __init__(self) -> None:
        self.machine = Machine("queues-0")
        self.offset = 0
        self.now_ms = START_MS
        self.called = Called()
        self.messages = self.called.of_messages
        self.names = self.called.of_consumers
        self.where: dict[str, tuple[int, str, int]] = {}  # name -> consumer, queue, session
        self.policies: dict[str, list[Policy | None]] = {}

    def say(self, line: str) -> list[str]:
        """The answer to one line."""
        verb, *words = line.split()
        if verb == "show":
            return [self.show(words[0])]
        event, session = getattr(self, verb)(*split(words))
        effects: list[Effect] = []
        self.machine.apply(self.offset, self.now_ms, Actor("guest", session), event, effects)
        self.machine.validate()
        self.offset += 1
        return [describe.effect(effect, self.called) for effect in effects]

    def message_ids(self, names: list[str]) -> tuple[tuple[int, int], ...]:
        ids = {name: message_id for message_id, name in self.messages.items()}
        return tuple(sorted((ids[name], ids[name]) for name in names))

    # -- what is asked ------------------------------------------------------------------------------------------------

    def declare(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        type, semantics = keys.pop("type", "classic"), keys.pop("semantics", "rabbitmq-3.13")
        session, owner = session_of(keys), session_of(keys, "owner", "0")
        given = {key: value(text) for key, text in keys.items() if "." not in key}
        self.policies[plain[0]] = [
            policy(who, **part) if part else None
            for who in ("policy", "operator")
            for part in [{key.split(".")[1]: value(text) for key, text in keys.items() if key.startswith(who + ".")}]
        ]
        durable, auto_delete = "transient" not in plain, "auto_delete" in plain
        own, of_operators = self.policies[plain[0]]
        return QueueDeclared(
            VHOST,
            plain[0],
            type=type,
            durable=durable,
            exclusive=owner > 0,
            auto_delete=auto_delete,
            owner=owner,
            arguments=arguments(dict(given)),
            semantics=semantics,
            policy=own,
            operator_policy=of_operators,
        ), session

    def policy(self, plain: list[str], keys: dict[str, str], place: int = 0) -> tuple[Event, int]:
        definition = {key: value(text) for key, text in keys.items()}
        held = self.policies[plain[0]]
        held[place] = policy(("policy", "operator")[place], **definition) if definition else None
        return PolicyApplied(VHOST, plain[0], *held), 0

    def operator(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return self.policy(plain, keys, 1)

    def publish(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        self.messages[self.offset] = f"m{len(self.messages) + 1}"
        expiration = int(keys["expiration"]) if "expiration" in keys else None
        names = plain[0].split(",")
        persistent = "transient" not in plain
        size = int(keys.get("size", "1"))
        return Published(
            route(*names), b"", expiration_ms=expiration, persistent=persistent, body=b"", body_size=size
        ), session_of(keys)

    def attach(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        name, queue = plain[:2]
        consumer, session = 100 + len(self.names), session_of(keys)
        self.names[consumer] = name
        self.where[name] = (consumer, queue, session)
        return ConsumerAttached(
            VHOST,
            queue,
            consumer,
            channel=int(keys.get("channel", "1")),
            tag=name,
            no_ack="no_ack" in plain,
            exclusive="exclusive" in plain,
            prefetch=int(keys.get("prefetch", "0")),
            credit=int(keys.get("credit", "0")),
            global_prefetch=int(keys.get("shared", "0")),
            priority=int(keys.get("priority", "0")),
            arguments=(),
        ), session

    def ack(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        consumer, queue, session = self.where[plain[0]]
        return Acked(VHOST, queue, consumer, self.message_ids(plain[1:])), session

    def nack(
        self, plain: list[str], keys: dict[str, str], method: str = "nack", requeue: bool = True
    ) -> tuple[Event, int]:
        consumer, queue, session = self.where[plain[0]]
        return Nacked(VHOST, queue, consumer, self.message_ids(plain[1:]), requeue, method), session

    def reject(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return self.nack(plain, keys, "reject")

    def drop(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return self.nack(plain, keys, "nack", False)

    def credit(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        consumer, queue, session = self.where[plain[0]]
        return Credited(VHOST, queue, consumer, int(plain[1])), session

    def qos(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        session, channel = session_of(keys), int(keys.get("channel", "1"))
        return GlobalPrefetchSet(session, channel, int(plain[0])), session

    def cancel(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        consumer, queue, session = self.where[plain[0]]
        return ConsumerCancelled(VHOST, queue, consumer), session

    def get(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        name, queue = plain[:2]
        consumer, _, session = self.where.setdefault(name, (100 + len(self.names), queue, session_of(keys)))
        self.names[consumer] = name
        return Fetched(VHOST, queue, consumer, 1, "no_ack" in plain), session

    def purge(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return Purged(VHOST, plain[0]), session_of(keys)

    def remove(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        named = {name: message_id for message_id, name in self.called.of_messages.items()}
        ids = sorted(named[name] for name in plain[1:])
        to = keys.get("to")
        ranges = tuple((message_id, message_id) for message_id in ids)
        return MessageRemoved(
            VHOST, plain[0], ranges, reason="", moved=to is not None, exchange=to or "", routing_key="key" if to else ""
        ), (session_of(keys))

    def pause(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return QueuePaused(VHOST, plain[0], ""), 1

    def resume(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return QueueResumed(VHOST, plain[0]), 1

    def delete(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return QueueDeleted(VHOST, plain[0], False, False), session_of(keys)

    def close(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return SessionClosed(int(plain[0]), int(plain[1]) if len(plain) > 1 else 0), int(plain[0])

    def wait(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        self.now_ms += int(plain[0])
        return Tick(), 0

    def start(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return BrokerStarted("node", "1", 1, "after_crash" in plain), 0

    def lost(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        return NodeLost("node", int(plain[0]), "lapsed"), 0

    def forwarded(self, plain: list[str], keys: dict[str, str]) -> tuple[Event, int]:
        queue = self.machine.queue(VHOST, plain[0])
        return DeadLettersForwarded(VHOST, plain[0], queue.queue_id if queue else -1, int(plain[1])), 0

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def show(self, name: str) -> str:
        return describe.queue_line(self.machine.queue(VHOST, name), self.called)


def perform(text: str) -> str:
    """The transcript with its answers written anew."""
    stage = Stage()
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        asked = line.split("#")[0].strip()
        if asked:
            lines.extend("    " + answer for answer in stage.say(asked))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: str(path.stem))
def test_transcript(path: Path) -> None:
    written = path.read_text()
    performed = perform(written)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(performed)
    else:
        assert performed == written


def test_there_are_transcripts() -> None:
    assert len(list(TRANSCRIPTS.glob("*.txt"))) >= 5
