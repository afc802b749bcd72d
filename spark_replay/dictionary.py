"""The meanings of the tables' columns, for people: docs/spark/columns.md is generated from them.

`TABLES` has the tables that a person meets. `TEXTS` gives the meaning of a column in every table; a table may say more
about its own columns.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from rewindmq.spark_replay import columns


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns, what a row is, where it comes from, and what its own columns mean."""

    columns: pa.Schema
    row: str
    source: str
    texts: dict[str, str] = field(default_factory=dict)


TEXTS = {
    "partition": "Partition of the log, such as `queues-0`",
    "offset": "Offset of the event in its partition",
    "timestamp": "Time of the event, in the log's time",
    "user": "User that did it; empty: the broker by itself",
    "session": "Session of the user in the history; 0 where there was none",
    "why": "The reason that the user gave; null: none",
    "event": "Type of the event, such as `Published`",
    "vhost": "Virtual host",
    "queue": "Name of the queue",
    "queue_id": "The queue among those of its name: the offset of its declaration",
    "exchange": "Exchange that the message was published to; empty: the default one",
    "routing_key": "Routing key of the publish",
    "message_id": "Id of the message: the offset of its publish in this partition",
    "consumer": "Number of the consumer, which no other one of the history has",
    "delivery_count": "How often the message was delivered before, as quorum queues count",
    "redelivered": "Whether the message was delivered before",
    "size": "Size of the body",
    "reason": "More about it: why dead-lettered, how requeued, why quarantined",
    "rule": "The rule that decided, such as `policy p.max-length` or `argument x-message-ttl`",
    "policy": "Name of the policy; null: none",
    "policy_version": "Offset in the metadata log at which the policy was set",
    "properties": "Properties of the message, as AMQP has them on the wire",
    "detail": "JSON of every field of the event that has no column",
    "body": "Body of the message; encrypted ones are opened with the keys of now",
    "candidate": "Name of the policy that was tried",
    "published": "Number of publishes",
    "delivered": "Number of deliveries",
}
EVENT_TEXTS = {
    "queue": "Queue that the event is about; null for a publish, which may go to several",
    "queues": "Queues of a publish in this partition",
    "consumer": "Number of the consumer that attached, left or acked",
    "messages": "Inclusive ranges of the message ids of an ack or a nack",
    "requeue": "Whether a nack puts the messages back",
    "method": "How a nack gives messages back: `nack`, `reject`, `recover` or `timeout`",
    "credit": "How many more messages the consumer may be sent",
    "expiration_ms": "Expiration that the publisher gave",
    "priority": "Priority that the publisher gave",
    "persistent": "Whether the delivery mode is 2",
    "record": "The event as it stands in the log",
}
OUTCOME_TEXTS = {
    "ordinal": "Place among the outcomes of the event: partition, offset and ordinal identify a row",
    "event": "Type of the event that caused it; null for what a tick of time caused",
    "outcome": "What became of the message ([history](history.md) lists them)",
    "final": "By this row the message left its queue",
    "message_id": "Id of the message; null where the row is about no message",
    "size": "Size of the body, of a row `published`",
    "exchange": "Exchange of a publish or of a dead letter",
    "routing_key": "Routing key of a publish or of a dead letter",
    "origin": "Source of a dead letter: its queue, its message, and the reason",
}
SPANS_TEXTS = {
    "sent": "Spans that the collector took",
    "rejected": "Spans that it refused",
    "waiting": "Stays in a queue that have not ended",
    "reason": "Why it refused some, in its words",
}
SLO_TEXTS = {
    "consumer": "Number of the consumer; null: the row is about all",
    "since": "Begin of the span of time; null: the row is about the whole range",
    "redelivered": "Number of deliveries that were not the first",
    "redelivery_rate": "`redelivered` by `delivered`",
    "ended": "Number of messages that left the queue",
    "wait_p50_ms": "From the publish to the first delivery: half of the messages waited no longer",
    "wait_p95_ms": "... 95 of 100",
    "wait_p99_ms": "... 99 of 100",
    "wait_max_ms": "... the longest",
    "stay_p50_ms": "From the publish to the end: half of the messages stayed no longer",
    "stay_p95_ms": "... 95 of 100",
    "stay_p99_ms": "... 99 of 100",
    "stay_max_ms": "... the longest",
}
QUEUE_TEXTS = {
    "offset": "All events below are folded",
    "clock": "Time in the partition at that moment",
    "type": "`classic`, `quorum` or `stream`; `delayed` of a hidden one",
    "durable": "Whether the queue outlives its node",
    "exclusive": "Whether it belongs to one connection",
    "auto_delete": "Whether it goes with its last consumer",
    "hidden": "The broker keeps it for itself (delayed messages, direct replies); no listing shows it",
    "arguments": "JSON of its arguments",
    "operator_policy": "Name of the operator policy; null: none",
    "operator_policy_version": "Offset in the metadata log at which it was set",
    "effective_policy_definition": "The definition in force, of both policies, as JSON",
    "messages": "Messages in the queue",
    "messages_ready": "... that wait for a consumer",
    "messages_unacknowledged": "... that a consumer has",
    "message_bytes": "Size of their bodies",
    "message_bytes_ready": "... of those that wait",
    "message_bytes_unacknowledged": "... of those that a consumer has",
    "messages_dlx": "Dead letters (at least once) that the target has not confirmed",
    "message_bytes_dlx": "... and the size of their bodies",
    "consumers": "Number of consumers",
    "counters": "Messages by what became of them, over the life of the queue",
    "digest": "Hash of the queue's state: equal states have equal ones",
}
MESSAGE_TEXTS = {
    "position": "From the head of the queue; -1: a consumer has it",
    "state": "`ready`, `unacked` or `delayed`",
    "expires": "When it expires; null: never",
    "consumer": "Consumer that has it; null: none",
    "published": "Time of the publish",
    "user": "User that published it",
}
PARTITION_TEXTS = {
    "start_offset": "Oldest offset",
    "end_offset": "The offset behind the newest one",
    "first_event": "Time of the oldest event",
    "last_event": "Time of the newest event",
    "snapshots": "Offsets of the stored states",
}
FINDING_TEXTS = {
    "check": "Name of the check",
    "ok": "Whether it holds",
    "partition": "Partition; null: the finding is about all",
    "offset": "Offset at which it was seen",
    "queue": "Queue that the finding is about; null: it is about none",
    "message_id": "Message, if it is about one",
    "detail": "What was found, for people",
    "severity": "How bad it is; empty where the check holds",
    "hint": "What to do; empty where the check holds",
}
FATE_TEXTS = {
    "before": "How the message ended, as recorded",
    "before_at": "... when",
    "before_rule": "... by which rule",
    "after": "How it ends under the policy that was tried",
    "after_at": "... when",
    "after_rule": "... by which rule",
}
DEPTH_TEXTS = {
    "at": "The moment",
    "before": "Messages in the queue, as recorded",
    "after": "Messages in the queue under the policy that was tried",
}
ASSUMPTION_TEXTS = {
    "late_reactions": "Actions of consumers that came later than recorded",
    "lost_reactions": "Actions that found no message any more",
    "guessed_acks": "Acks of messages that no consumer had met",
}
CHANGE = {"change": "1: the message came into the queue; -1: it left"}
PLACE = {"position": MESSAGE_TEXTS["position"]}

TABLES = {
    "events": Table(columns.EVENTS, "an event of the log", "[events](events.md)", EVENT_TEXTS),
    "history": Table(columns.HISTORY, "an outcome of an event", "[history](history.md)", OUTCOME_TEXTS),
    "diff": Table(
        columns.DIFF, "an outcome by which a message came or left", "[diff](diff.md)", OUTCOME_TEXTS | CHANGE
    ),
    "slo": Table(columns.SLO, "a queue, a consumer or a span of time", "[slo](slo.md)", SLO_TEXTS),
    "queues": Table(columns.QUEUES, "a queue at a moment", "[state-at](state-at.md)", QUEUE_TEXTS),
    "messages": Table(
        columns.MESSAGES, "a message in a queue at that moment", "[state-at](state-at.md)", MESSAGE_TEXTS
    ),
    "partitions": Table(columns.PARTITIONS, "a partition of the log", "option `view` = `partitions`", PARTITION_TEXTS),
    "findings": Table(columns.FINDINGS, "a check of an audit", "[audit](audit.md)", FINDING_TEXTS),
    "fates": Table(columns.FATES, "a message that ends differently", "[what-if](what-if.md)", FATE_TEXTS),
    "depths": Table(columns.DEPTHS, "a queue at a moment", "[what-if](what-if.md)", DEPTH_TEXTS),
    "standing": Table(
        columns.STANDING, "a message that would be in the queue at the end", "[what-if](what-if.md)", PLACE
    ),
    "assumptions": Table(
        columns.ASSUMPTIONS,
        "a candidate, with what could not stay as recorded",
        "[what-if](what-if.md)",
        ASSUMPTION_TEXTS,
    ),
    "spans sent": Table(columns.SPANS_SENT, "an export of spans", "[tracing](../operators/tracing.md)", SPANS_TEXTS),
}


def text_of(table: Table, name: str) -> str:
    """Return the meaning of a table's column. Raises KeyError if no text gives it."""
    return table.texts[name] if name in table.texts else TEXTS[name]
