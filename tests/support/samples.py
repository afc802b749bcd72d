"""One sample of each event (more where an event has several faces), and the golden files made of them.

    tests/golden/<fingerprint>/<module>.json    the samples of a module of events, under that schema, by name:
        value    the content, for people and for the test
        bytes    the record in hexadecimal digits, without the ten bytes before it that name the schema

`python -m tests.support.samples` writes those of today's schema anew. Bytes that are there never change.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from rewindmq.schemas import access_events as a
from rewindmq.schemas import clock_events
from rewindmq.schemas import events as e
from rewindmq.schemas import metadata_events as m
from rewindmq.schemas import operator_events as o
from rewindmq.schemas import placement_events as p
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.single_object import HEADER_SIZE, header_of
from rewindmq.schemas.values import (
    BROKER,
    Actor,
    Argument,
    CountedPartition,
    Deduplication,
    Encryption,
    MovedFrom,
    Origin,
    Policy,
    Route,
    SeenLetters,
    SeenRestored,
    Unrouted,
    UnroutedLetter,
)

GOLDEN = Path(__file__).parent.parent / "golden"

GUEST = Actor("guest", 7)
ADMIN = Actor("ops-naïve-✈", 300)
TIMESTAMP_MS = 1_763_715_845_678
ROUTE = Route("/", "flights", "dep.JFK.AA", ("jfk", "carrier-aa"))
PROPERTIES = bytes.fromhex("9000") + b"\x10application/json" + b"\x02"
POLICY = Policy("limits", '{"dead-letter-exchange":"dlx","max-length":1000}', 41)
OPERATOR_POLICY = Policy("ceiling", '{"max-length":100000}', 42)
ARGUMENTS = (
    Argument("x-max-length", "long", 1000),
    Argument("x-overflow", "longstr", "reject-publish"),
    Argument("x-single-active-consumer", "bool", True),
    Argument("x-weight", "double", 0.5),
    Argument("x-void", "void", None),
    Argument("x-binary", "binary", b"\x00\xff"),
    Argument("x-table", "table", '{"a":[1,2]}'),
    Argument("x-negative", "signedint", -5),
)

SAMPLES: dict[str, tuple[int, Actor, e.Event]] = {
    "Published": (
        TIMESTAMP_MS,
        GUEST,
        e.Published(
            ROUTE,
            PROPERTIES,
            expiration_ms=None,
            priority=None,
            persistent=True,
            origin=None,
            encryption=None,
            body=b'{"delay":5}',
            body_size=11,
        ),
    ),
    "Published-plain": (
        0,
        BROKER,
        e.Published(
            Route("/", "", "q", ("q",)),
            b"\0\0",
            expiration_ms=0,
            priority=0,
            persistent=False,
            origin=None,
            encryption=None,
            body=b"",
            body_size=0,
        ),
    ),
    "Published-dead-letter": (
        TIMESTAMP_MS,
        BROKER,
        e.Published(
            Route("/", "dlx", "jfk", ("dead",)),
            PROPERTIES,
            expiration_ms=60_000,
            priority=9,
            persistent=True,
            origin=Origin("/", "jfk", 12, 123_456, "maxlen", 3),
            encryption=None,
            body=b"x" * 300,
            body_size=300,
        ),
    ),
    "Published-restored": (
        TIMESTAMP_MS,
        ADMIN,
        e.Published(
            Route("/", "flights", "dep.JFK", ("jfk",)),
            PROPERTIES,
            expiration_ms=5_000,
            priority=None,
            persistent=True,
            origin=Origin(
                "/",
                "jfk",
                queue_id=12,
                message_id=123_456,
                reason="restored",
                sequence=7,
                restore="jfk@1763715845678",
                delivery_count=2,
                redelivered=True,
            ),
            encryption=None,
            body=b"again",
            body_size=5,
        ),
    ),
    "Published-encrypted": (
        TIMESTAMP_MS,
        GUEST,
        e.Published(
            ROUTE,
            PROPERTIES,
            expiration_ms=None,
            priority=None,
            persistent=True,
            origin=None,
            encryption=Encryption("passenger-1", "key-2026", bytes(range(12)), 11),
            body=bytes(range(27)),
            body_size=11,
        ),
    ),
    "Published-deduplicated": (
        TIMESTAMP_MS,
        GUEST,
        e.Published(
            Route("/", "events.once", "order", ("orders", "audit"), Deduplication("events.once", 1_000, 60_000)),
            PROPERTIES,
            expiration_ms=None,
            priority=None,
            persistent=True,
            origin=None,
            encryption=None,
            body=b"order 1",
            body_size=7,
        ),
    ),
    "Acked": (TIMESTAMP_MS, GUEST, e.Acked("/", "jfk", 5, ((100, 163), (200, 200), (2**40, 2**40 + 1)))),
    "Nacked": (TIMESTAMP_MS, GUEST, e.Nacked("/", "jfk", 5, ((7, 7),), False, "reject")),
    "Credited": (TIMESTAMP_MS, BROKER, e.Credited("/", "jfk", 5, 1000)),
    "Fetched": (TIMESTAMP_MS, GUEST, e.Fetched("/", "jfk", 6, 1, False)),
    "QueueDeclared": (
        TIMESTAMP_MS,
        GUEST,
        e.QueueDeclared(
            "/",
            "jfk",
            type="classic",
            durable=True,
            exclusive=False,
            auto_delete=False,
            owner=0,
            arguments=ARGUMENTS,
            semantics="rabbitmq-3.13",
            policy=POLICY,
            operator_policy=OPERATOR_POLICY,
        ),
    ),
    "QueueDeclared-exclusive": (
        TIMESTAMP_MS,
        GUEST,
        e.QueueDeclared(
            "/",
            "amq.gen-x",
            type="classic",
            durable=False,
            exclusive=True,
            auto_delete=True,
            owner=7,
            arguments=(),
            semantics="rabbitmq-3.13",
            policy=None,
            operator_policy=None,
        ),
    ),
    "QueueDeleted": (TIMESTAMP_MS, GUEST, e.QueueDeleted("/", "jfk", True, False)),
    "PolicyApplied": (TIMESTAMP_MS, ADMIN, e.PolicyApplied("/", "jfk", POLICY, None)),
    "ConsumerAttached": (
        TIMESTAMP_MS,
        GUEST,
        e.ConsumerAttached(
            "/",
            "jfk",
            5,
            channel=1,
            tag="ctag1.0",
            no_ack=False,
            exclusive=False,
            prefetch=200,
            credit=0,
            global_prefetch=0,
            priority=-1,
            arguments=ARGUMENTS[:1],
        ),
    ),
    "ConsumerCancelled": (TIMESTAMP_MS, GUEST, e.ConsumerCancelled("/", "jfk", 5)),
    "Purged": (TIMESTAMP_MS, ADMIN, e.Purged("/", "jfk")),
    "Tick": (TIMESTAMP_MS, BROKER, e.Tick()),
    "SessionClosed": (TIMESTAMP_MS, GUEST, e.SessionClosed(7, 0)),
    "DeadLettersForwarded": (TIMESTAMP_MS, BROKER, e.DeadLettersForwarded("/", "jfk", 12, 3)),
    "Checkpointed": (TIMESTAMP_MS, BROKER, e.Checkpointed(123_456, "ab" * 32)),
    "BrokerStarted": (TIMESTAMP_MS, BROKER, e.BrokerStarted("rewindmq@host", "0.1.0", 1)),
    "MachineUpgraded": (TIMESTAMP_MS, BROKER, e.MachineUpgraded(1)),
    "VhostCreated": (TIMESTAMP_MS, ADMIN, m.VhostCreated("shop", "The shop")),
    "VhostDeleted": (TIMESTAMP_MS, ADMIN, m.VhostDeleted("shop")),
    "UserSet": (TIMESTAMP_MS, ADMIN, m.UserSet("eve", "$argon2id$v=19$m=1,t=1,p=1$c2FsdA$aGFzaA", ("monitoring",))),
    "UserDeleted": (TIMESTAMP_MS, ADMIN, m.UserDeleted("eve")),
    "PermissionsSet": (TIMESTAMP_MS, ADMIN, m.PermissionsSet("/", "eve", "^eve-", ".*", "")),
    "PermissionsCleared": (TIMESTAMP_MS, ADMIN, m.PermissionsCleared("/", "eve")),
    "ExchangeDeclared": (
        TIMESTAMP_MS,
        GUEST,
        m.ExchangeDeclared(
            "/", "flights", type="topic", durable=True, auto_delete=False, internal=False, arguments=ARGUMENTS
        ),
    ),
    "ExchangeDeleted": (TIMESTAMP_MS, GUEST, m.ExchangeDeleted("/", "flights")),
    "Bound": (TIMESTAMP_MS, GUEST, m.Bound("/", "flights", "queue", "jfk", "dep.JFK.*", (), 4_711)),
    "Unbound": (TIMESTAMP_MS, GUEST, m.Unbound("/", "flights", "exchange", "archive", "#", ARGUMENTS[:2])),
    "PolicySet": (TIMESTAMP_MS, ADMIN, m.PolicySet("/", "limits", "^jfk$", POLICY.definition, 3, "queues")),
    "PolicyCleared": (TIMESTAMP_MS, ADMIN, m.PolicyCleared("/", "limits")),
    "OperatorPolicySet": (
        TIMESTAMP_MS,
        ADMIN,
        m.OperatorPolicySet("/", "ceiling", ".*", OPERATOR_POLICY.definition, 0, "quorum_queues"),
    ),
    "OperatorPolicyCleared": (TIMESTAMP_MS, ADMIN, m.OperatorPolicyCleared("/", "ceiling")),
    "GlobalPrefetchSet": (TIMESTAMP_MS, GUEST, e.GlobalPrefetchSet(7, 1, 20)),
    "NodeJoined": (TIMESTAMP_MS, BROKER, m.NodeJoined("rewindmq@one", "0.2.0", 1, "one:5672")),
    "NodeLost": (TIMESTAMP_MS, BROKER, e.NodeLost("rewindmq@one", 300, "lapsed")),
    "NodeAlive": (TIMESTAMP_MS, BROKER, e.NodeAlive("rewindmq@one", 300, 4_711)),
    "QueueRefuses": (TIMESTAMP_MS, BROKER, e.QueueRefuses("/", "orders", "queues-1", 4_711)),
    "CheckpointAsked": (TIMESTAMP_MS, BROKER, e.CheckpointAsked()),
    "LeaseRenewed": (TIMESTAMP_MS, GUEST, e.LeaseRenewed("/", "jfk", 12)),
    "PastRead": (
        TIMESTAMP_MS,
        GUEST,
        e.PastRead("/", "jfk", 6, 1, "ctag1.1", (Argument("x-rewind-to", "longstr", "2025-11-21T09:00:00Z"),)),
    ),
    "TopicPermissionsSet": (TIMESTAMP_MS, ADMIN, m.TopicPermissionsSet("/", "eve", "flights", "^dep\\.", ".*")),
    "TopicPermissionsCleared": (TIMESTAMP_MS, ADMIN, m.TopicPermissionsCleared("/", "eve", "flights")),
    "ParameterSet": (TIMESTAMP_MS, ADMIN, m.ParameterSet("shop", "vhost-limits", "limits", '{"max-queues":100}')),
    "ParameterCleared": (TIMESTAMP_MS, ADMIN, m.ParameterCleared("shop", "vhost-limits", "limits")),
    "GlobalParameterSet": (TIMESTAMP_MS, ADMIN, m.GlobalParameterSet("cluster_name", '"airport"')),
    "GlobalParameterCleared": (TIMESTAMP_MS, ADMIN, m.GlobalParameterCleared("cluster_name")),
    "UserLimitsSet": (TIMESTAMP_MS, ADMIN, m.UserLimitsSet("eve", '{"max-channels":10}')),
    "SubjectErased": (TIMESTAMP_MS, ADMIN, m.SubjectErased("passenger-7", ("k1", "k2"), "asked for it")),
    "ClockStepped": (
        TIMESTAMP_MS,
        BROKER,
        clock_events.ClockStepped("rewindmq-1", "running", TIMESTAMP_MS + 18_000_000, TIMESTAMP_MS),
    ),
    "ClockSet": (TIMESTAMP_MS, ADMIN, clock_events.ClockSet(-315_532_800_000, TIMESTAMP_MS + 315_532_800_000)),
    "MarkSet": (
        TIMESTAMP_MS,
        ADMIN,
        m.MarkSet("before-release", (("queues-0", 12), ("queues-1", 0)), "4.2 goes live"),
    ),
    "MarkDeleted": (TIMESTAMP_MS, ADMIN, m.MarkDeleted("before-release")),
    "HistoryTrimmed": (
        TIMESTAMP_MS,
        ADMIN,
        m.HistoryTrimmed(
            "queues-0",
            7,
            until_ms=TIMESTAMP_MS,
            chain=bytes(range(32)),
            digest="ab" * 32,
            findings=("one finding",),
            reason="older than 400d",
        ),
    ),
    "HistoryForked": (
        TIMESTAMP_MS,
        ADMIN,
        m.HistoryForked("ab" * 32, "cd" * 32, "mark:before-release", (("queues-0", 7),), "s3://bucket/prefix"),
    ),
    "SessionOpened": (
        TIMESTAMP_MS,
        GUEST,
        a.SessionOpened(
            7,
            vhost="/",
            protocol="amqp",
            address="10.0.0.7:51230",
            listener="0.0.0.0:5671",
            proxy="10.0.0.1:40000",
            mechanism="EXTERNAL",
            tls="TLSv1.3 TLS_AES_256_GCM_SHA384",
            certificate="CN=shop,O=Example",
            client_properties=(Argument("product", "longstr", "pika"),),
        ),
    ),
    "LoginRefused": (
        TIMESTAMP_MS,
        BROKER,
        a.LoginRefused(
            "root",
            host="10.0.0.9",
            listener="0.0.0.0:5672",
            protocol="amqp",
            mechanism="PLAIN",
            reason="invalid credentials",
            count=812,
            first_ms=TIMESTAMP_MS - 60_000,
        ),
    ),
    "AccessRefused": (
        TIMESTAMP_MS,
        GUEST,
        a.AccessRefused(
            "queue.declare", "/", "queue", "jfk", "configure access to queue 'jfk' refused", 1, TIMESTAMP_MS
        ),
    ),
    "MessageRemoved": (
        TIMESTAMP_MS,
        ADMIN,
        o.MessageRemoved("/", "jfk", ((3, 3), (7, 9)), reason="poison ✈", moved=False, exchange="", routing_key=""),
    ),
    "MessageRemoved-moved": (
        TIMESTAMP_MS,
        ADMIN,
        o.MessageRemoved("/", "jfk", ((4, 4),), reason="", moved=True, exchange="flights", routing_key="late"),
    ),
    "QueuePaused": (TIMESTAMP_MS, ADMIN, o.QueuePaused("/", "jfk", "the shop is closed")),
    "QueueResumed": (TIMESTAMP_MS, ADMIN, o.QueueResumed("/", "jfk")),
    "PastRead-http": (
        TIMESTAMP_MS,
        ADMIN,
        e.PastRead(
            "/",
            queue="jfk",
            consumer=0,
            channel=0,
            tag="",
            arguments=(),
            way="GET /api/queues/%2F/jfk/messages",
            request="at=2025-11-21T09:00:00Z",
        ),
    ),
    "BodiesExpired": (TIMESTAMP_MS, ADMIN, m.BodiesExpired("2026-11-23", ("k1", "k2"))),
    "Nacked-timeout": (TIMESTAMP_MS, BROKER, e.Nacked("/", "jfk", 5, ((1, 3),), True, "timeout")),
    "VhostCreated-tagged": (TIMESTAMP_MS, ADMIN, m.VhostCreated("shop", "The shop", ("eu", "paid"), "quorum")),
    "Checkpointed-final": (TIMESTAMP_MS, BROKER, e.Checkpointed(123_456, "ab" * 32, "rewindmq@one", True)),
    "BrokerStarted-after-crash": (TIMESTAMP_MS, BROKER, e.BrokerStarted("rewindmq@host", "0.2.0", 1, True)),
    "Published-relocated": (
        TIMESTAMP_MS,
        BROKER,
        e.Published(
            Route("/", "flights", "dep.JFK", ("jfk",)),
            PROPERTIES,
            expiration_ms=4_000,
            priority=3,
            persistent=True,
            origin=Origin(
                "/",
                "jfk",
                queue_id=12,
                message_id=123_456,
                reason="relocated",
                sequence=4,
                restore="",
                delivery_count=2,
                redelivered=True,
                acquired_count=3,
                partition=5,
            ),
            encryption=None,
            body=b"along",
            body_size=5,
        ),
    ),
    "QueueDeclared-moved": (
        TIMESTAMP_MS,
        BROKER,
        e.QueueDeclared(
            "/",
            "jfk",
            type="quorum",
            durable=True,
            exclusive=False,
            auto_delete=False,
            owner=0,
            arguments=ARGUMENTS[:2],
            semantics="rabbitmq-4.3",
            policy=POLICY,
            operator_policy=None,
            moved_from=MovedFrom(
                1,
                12,
                5,
                True,
                (
                    SeenLetters("/", "late", 7, 41, -1, False),
                    SeenLetters("/", "jfk", 3, 2**40, 0, True),
                ),
                (SeenRestored("jfk@1763715845678", "/", "jfk", 12, ((100, 163), (200, 200))),),
            ),
        ),
    ),
    "QueueDrained": (TIMESTAMP_MS, BROKER, e.QueueDrained("/", "jfk", 12, 1_000)),
    "DeadLettersForwarded-relocated": (TIMESTAMP_MS, BROKER, e.DeadLettersForwarded("/", "jfk", 12, 3, True)),
    "DeadLettersForwarded-taken": (TIMESTAMP_MS, BROKER, e.DeadLettersForwarded("/", "jfk", 12, 0, taken=7)),
    "NodeJoined-partitions": (TIMESTAMP_MS, BROKER, m.NodeJoined("rewindmq@one", "0.2.0", 7, "one:5672", 6)),
    "PartitionsAdded": (TIMESTAMP_MS, ADMIN, p.PartitionsAdded(2, 6)),
    "NamesHeld": (TIMESTAMP_MS, BROKER, p.NamesHeld(6)),
    "QueuesStay": (
        TIMESTAMP_MS,
        BROKER,
        p.QueuesStay(1, (p.QueueName("/", "jfk"), p.QueueName("shop", "orders ✈"))),
    ),
    "PlacementChanged": (TIMESTAMP_MS, BROKER, p.PlacementChanged(6)),
    "QueueMoveBegan": (TIMESTAMP_MS, BROKER, p.QueueMoveBegan("/", "jfk", 12, 5)),
    "QueueMoveEnded": (TIMESTAMP_MS, BROKER, p.QueueMoveEnded("/", "jfk", 4)),
    "UnroutedCounted": (
        TIMESTAMP_MS,
        GUEST,
        a.UnroutedCounted("/", "telemetry", "sensor.7", ("4711", "4712"), 1_000, TIMESTAMP_MS - 60_000),
    ),
    "SessionCounted": (
        TIMESTAMP_MS,
        GUEST,
        a.SessionCounted(
            7,
            received=110,
            refused=2,
            unknown_exchange=1,
            after_error=3,
            unfinished=4,
            grouped=5,
            copies=10,
            partitions=(CountedPartition(0, 4711, 60), CountedPartition(300, 1 << 40, 45)),
        ),
    ),
    "DeadLettersForwarded-unrouted": (
        TIMESTAMP_MS,
        BROKER,
        e.DeadLettersForwarded("/", "jfk", 12, 3, unrouted=(UnroutedLetter(17, 1_024), UnroutedLetter(300, 0))),
    ),
    "Published, taken by no queue": (
        TIMESTAMP_MS,
        GUEST,
        e.Published(
            Route("/", "orders", "created.eu", (), Unrouted(alternate=True, returned=False)),
            PROPERTIES,
            persistent=True,
            body=b"order 2",
            body_size=7,
        ),
    ),
    "Purged, with a reason": (
        TIMESTAMP_MS,
        Actor("guest", 7, "ticket 4711: test data in production"),
        e.Purged("/", "orders"),
    ),
}


def readable(value: Any) -> Any:
    """Plain JSON data: a record as an object, bytes as {"hex": ...}."""
    if dataclasses.is_dataclass(value):
        return {field.name: readable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [readable(item) for item in value] if isinstance(value, tuple) else value


def readable_envelope(timestamp_ms: int, actor: Actor, event: e.Event) -> dict[str, Any]:
    who = {name: value for name, value in readable(actor).items() if name != "reason" or value}
    return {"timestamp": timestamp_ms, "actor": who, "event": {type(event).__name__: readable(event)}}


def sample_record(name: str) -> bytes:
    timestamp_ms, actor, event = SAMPLES[name]
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


def golden(fingerprint: str) -> dict[str, Any]:
    """The stored samples of a released schema, by name."""
    files = sorted((GOLDEN / fingerprint).glob("*.json"))
    return {name: stored for file in files for name, stored in json.loads(file.read_text("utf-8")).items()}


def golden_record(fingerprint: str, stored: dict[str, Any]) -> bytes:
    """The record of a stored sample, whose file has it without the header."""
    return header_of(fingerprint) + bytes.fromhex(stored["bytes"])


def write_golden() -> None:
    """Write today's samples."""
    directory = GOLDEN / envelope_fingerprint()
    directory.mkdir(parents=True, exist_ok=True)
    by_module: dict[str, dict[str, Any]] = {}
    for name, sample in SAMPLES.items():
        stored = {"value": readable_envelope(*sample), "bytes": sample_record(name)[HEADER_SIZE:].hex()}
        by_module.setdefault(type(sample[2]).__module__.rpartition(".")[2], {})[name] = stored
    for module, samples in by_module.items():
        (directory / f"{module}.json").write_text(json.dumps(samples, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    write_golden()
