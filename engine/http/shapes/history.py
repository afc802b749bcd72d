"""Types of the answers about the history."""

from typing import Annotated, Literal, NotRequired, TypedDict

from rewindmq.engine.http.shapes.basics import MessageId, Moment, Properties, Time
from rewindmq.engine.http.shapes.queues import Encoding
from rewindmq.engine.http.shapes.topology import Binding, Leaving, LostBinding


class Origin(TypedDict):
    """The message that a dead letter comes from."""

    vhost: str
    queue: str
    queue_id: int
    message_id: MessageId
    reason: str


class Outcome(TypedDict):
    """A row of the history: an outcome of an event. The columns are those of Spark's table HISTORY."""

    timestamp: Time | None
    partition: str
    offset: Annotated[int, "Of the event that caused it"]
    ordinal: int
    event: str | None
    user: str | None
    session: int | None
    vhost: str | None
    queue: str | None
    queue_id: int | None
    outcome: str
    final: Annotated[bool | None, "By it the message left its queue"]
    consumer: int | None
    delivery_count: int | None
    redelivered: bool | None
    reason: str | None
    rule: str | None
    policy: str | None
    policy_version: int | None
    exchange: str | None
    routing_key: str | None
    origin: Origin | None
    message_id: MessageId | None
    size: int | None


class Trace(TypedDict):
    """The trace of a message, and the span that published it (W3C Trace Context)."""

    trace_id: str
    parent_id: str
    flags: int
    state: str
    message_id: str | None
    correlation_id: str | None


class TracedOutcome(Outcome):
    """A row of the history. A publish that belongs to a trace has it."""

    trace: NotRequired[Trace]


class FoundMessage(TypedDict):
    """A message of the history."""

    message: Annotated[str, "partition:message id"]
    partition: str
    message_id: MessageId
    published: Time
    user: str
    vhost: str
    queues: list[str]
    exchange: str
    routing_key: str
    origin: Origin | None
    payload_bytes: int
    properties: Properties
    payload: str
    payload_encoding: Encoding


class FoundMessages(TypedDict):
    """A portion of a search. `next` null: the search is at its end."""

    messages: list[FoundMessage]
    searched: Annotated[int, "Records that were searched"]
    read: Annotated[int, "... and read: an index of ids spares the others"]
    left: Annotated[int, "Records that are still to be searched"]
    next: str | None


class BiographyMessage(FoundMessage):
    """The message of a biography."""

    truncated: bool
    body_gone: Annotated[str | None, "Why it has no body any more"]


class Biography(TypedDict):
    """The life of a message."""

    message: BiographyMessage
    rows: list[Outcome]
    complete: bool


class LastOutcomes(TypedDict):
    """The last outcomes in a queue."""

    partition: str
    rows: list[Outcome]
    complete: bool


class ChangeSum(TypedDict):
    """The number of messages that came or left, by outcome, rule and user."""

    outcome: str
    rule: str | None
    user: str | None
    change: int


class Change(Outcome):
    """A row by which a message came (1) or left (-1)."""

    change: Literal[1, -1]


Changes = TypedDict(
    "Changes",
    {
        "partition": str,
        "from": int,
        "to": int,
        "summary": list[ChangeSum],
        "rows": list[Change],
        "more": Annotated[int, "Rows that are not shown"],
        "complete": bool,
    },
)


class Point(TypedDict):
    """The length of a queue at a moment, and what happened since the point before."""

    time: Time
    offset: int
    ready: Annotated[int | None, "null: the queue did not exist"]
    unacked: int | None
    published: int
    outcomes: dict[str, int]


class Tick(TypedDict):
    """A person's act: a purge, a policy, a mark ..."""

    time: Time
    offset: int
    kind: str
    text: str
    user: str
    messages: NotRequired[int]


DepthOverTime = TypedDict(
    "DepthOverTime",
    {
        "partition": str,
        "from": Moment,
        "to": Moment,
        "floor": Annotated[int | None, "Where the history begins, if it was trimmed"],
        "points": list[Point],
        "ticks": list[Tick],
        "more_ticks": int | bool,
        "complete": bool,
    },
)


class World(TypedDict):
    """A queue in one of the two folds."""

    outcomes: list[Leaving]
    greatest_depth: int
    depth: int


class Exchanged(TypedDict):
    """The number of messages that end by `after` instead of `before`."""

    before: str
    before_rule: str | None
    after: str
    after_rule: str | None
    messages: int


class Difference(TypedDict):
    """A message that would have ended differently."""

    message_id: MessageId
    before: str
    before_at: Time
    before_rule: str | None
    after: str
    after_at: Time
    after_rule: str | None


WhatIf = TypedDict(
    "WhatIf",
    {
        "partition": str,
        "from": int,
        "to": int,
        "left": Annotated[int, "Records that were not folded"],
        "stopped": Annotated[str | None, "Why the end was not reached"],
        "before": World,
        "after": World,
        "summary": list[Exchanged],
        "rows": list[Difference],
        "more": int,
        "assumptions": dict[str, int],
        "limits": Annotated[list[str], "What such an answer cannot know"],
        "complete": bool,
    },
)


class TracedOutcomes(TypedDict):
    """A portion of rows. `next` null: it was the last one."""

    rows: list[TracedOutcome]
    left: int
    next: str | None


class RestoreWish(TypedDict, total=False):
    """The messages to restore: chosen by one of `time`, `offset` and `undo`, or by `messages`."""

    time: Annotated[str, "A time, or mark:NAME"]
    offset: int
    partition: Annotated[str, "The one that offset or messages are of"]
    undo: Literal["purge", "delete", "remove"]
    only: Annotated[str | list[str], "Fates since then, or all"]
    messages: list[int]
    records: Annotated[dict[str, str], "With messages, by id: the SHA-256 of records in the history that they are of"]
    to: Annotated[str, "Another queue of the virtual host"]
    name: Annotated[str, "Each message comes back once under a name"]
    rate: Annotated[int | str, "Messages a second"]
    dry_run: bool | str
    incarnation: Annotated[int | str, "A queue id"]


class RestoreMoment(TypedDict):
    """The moment of a restoration."""

    partition: str
    offset: int
    time: Time


class Restored(TypedDict):
    """The messages that came back, or would come back."""

    name: str
    vhost: str
    queue: str
    to: str
    at: RestoreMoment
    messages: int
    message_bytes: int
    fates: dict[str, int]
    dry_run: bool
    restored: NotRequired[int]
    duplicates: NotRequired[int]
    refused: NotRequired[int]
    declared: NotRequired[bool]
    cancelled: NotRequired[bool]
    bindings: list[Binding]
    bindings_lost: list[LostBinding]


class CancelledRestoration(TypedDict):
    """A restoration that was cancelled. `back`: the messages that are back."""

    name: str
    to: str
    messages: int
    back: int


class Cancelled(TypedDict):
    """The restorations that were cancelled."""

    cancelled: list[CancelledRestoration]


class Mark(TypedDict):
    """A moment with a name. Note and user are empty for users who may not see them."""

    name: str
    note: str
    user: str
    time: Time
    positions: dict[str, int]


class MarkWish(TypedDict, total=False):
    """A mark that is to be set."""

    note: str


class QuarantinedRecord(TypedDict):
    """A record that made no sense and was skipped."""

    partition: str
    topic: str | None
    offset: int
    event: str | None
    reason: str


class Sealed(TypedDict):
    """The sealed part of a partition."""

    partition: str
    seals: int
    sealed_to: int
    next_offset: int
    not_sealed: int
    sealed: Time | None
    key: str | None
    keys: Annotated[int | list[str], "The keys that sealed it"]
    damaged: list[str]


class SealedPartitions(TypedDict):
    """All partitions, in the shape of a page."""

    total_count: int
    item_count: int
    filtered_count: int
    page: int
    page_size: int
    page_count: int
    items: list[Sealed]


class Harm(TypedDict):
    """A problem that a check of the seals found."""

    offset: int | None
    what: str


class SealCheck(TypedDict):
    """A portion of a check of the seals. `next` null: it was the last one."""

    partition: str
    stretches: int
    checked: int
    next: int | None
    sealed_to: int
    signatures: Annotated[bool, "Whether signatures were checked"]
    harms: list[Harm]
    more: int
    notes: list[str]


class TrimAudit(TypedDict):
    """The audit of what was trimmed last from a partition."""

    partition: str
    audited_to: int
    time: Time
    user: str
    until: Time
    reason: str
    findings: list[str]
    chain: str
    digest: str
