"""The columns of every table that `spark_replay` reads or makes: names and types are agreed only here.

    EVENTS    one row an event of the log                        spark.read.format("rewindmq")
    RECORDS   the same, undecoded and without bodies: input of a fold (option view=records); of a Kafka KAFKA_RECORDS
    HISTORY   one row an outcome of an event
    DIFF      one row of HISTORY by which a message came into a queue or left it
    SLO       one row a queue, consumer or span of time: how long messages waited and stayed
    QUEUES    one row a queue at a moment
    MESSAGES  one row a message in a queue at that moment
    PARTITIONS  one row a partition of the log, with its ends
    AUDIT     one row a finding
    LETTERS   one row a step of a dead letter's way between partitions, for the audit alone

Names are RabbitMQ's where it has one (`messages_ready`, `x-` arguments), Kafka's for the log (`partition`, `offset`).
Times are `timestamp` columns in UTC, sizes are bytes, durations end in `_ms`. JSON in a column is canonical: sorted
keys, no spaces. Arrow types are written here, Spark's are made from them (`spark_schema`).
"""

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TEXT, LONG, INT, FLOAT = pa.string(), pa.int64(), pa.int32(), pa.float64()
BOOL, BYTES = pa.bool_(), pa.binary()
TIME = pa.timestamp("us", "UTC")


def table(**columns: pa.DataType) -> pa.Schema:
    """Return an Arrow schema of these columns."""
    return pa.schema(list(columns.items()))


def struct(**fields: pa.DataType) -> pa.DataType:
    """Return an Arrow struct of these fields."""
    return pa.struct(list(fields.items()))


def some_of(columns: pa.Schema, *names: str) -> pa.Schema:
    """Return an Arrow schema of the named columns only."""
    return pa.schema([columns.field(name) for name in names])


def spark_schema(columns: pa.Schema) -> "StructType":
    """Return the same columns as a Spark schema. Needs no JVM, so that workers can call it too."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns)


RECORDS = table(partition=TEXT, offset=LONG, record=BYTES)
# The same for a history in Kafka, where a record is an Avro single object and its time is Kafka's
KAFKA_RECORDS = table(partition=TEXT, offset=LONG, timestamp_ms=LONG, record=BYTES)

# `queue` names the queue of an event that concerns one; `queues` the queues of a publish that are in this partition.
# `messages` are inclusive ranges of message ids (acks and nacks). `detail` is JSON of every field without a column.
EVENTS = table(
    partition=TEXT,
    offset=LONG,
    timestamp=TIME,
    user=TEXT,
    session=LONG,
    why=TEXT,
    event=TEXT,
    vhost=TEXT,
    queue=TEXT,
    queues=pa.list_(TEXT),
    exchange=TEXT,
    routing_key=TEXT,
    consumer=LONG,
    messages=pa.list_(struct(first=LONG, last=LONG)),
    requeue=BOOL,
    method=TEXT,
    credit=LONG,
    size=LONG,
    expiration_ms=LONG,
    priority=INT,
    persistent=BOOL,
    detail=TEXT,
    properties=BYTES,
    record=BYTES,
)
# In the form of Spark's Kafka source; a value that is not text or bytes is JSON (projections/history/properties.py)
HEADERS = pa.list_(struct(key=TEXT, value=BYTES))


def events(bodies: bool, headers: bool) -> pa.Schema:
    """Return the columns of EVENTS, with the optional ones: `body`, and `headers`, which cost time to decode."""
    more = [pa.field("headers", HEADERS)] * headers + [pa.field("body", BYTES)] * bodies
    return pa.schema([*EVENTS, *more])


# (partition, offset, ordinal) identifies a row: `offset` is that of the event that caused it. `message_id` is null
# where no message is concerned. `final`: by this row the message left its queue, so at any moment, for any queue
#   count(outcome = 'published') = count(final) + number of messages in the queue
# `reason` says more about the outcome (why dead-lettered, how requeued, why quarantined); `rule`, `policy` and
# `policy_version` name the rule that decided, and the offset of the metadata log at which that policy was set. `origin`
# is the source of a dead letter.
HISTORY = table(
    partition=TEXT,
    offset=LONG,
    ordinal=INT,
    timestamp=TIME,
    event=TEXT,
    user=TEXT,
    session=LONG,
    why=TEXT,
    vhost=TEXT,
    queue=TEXT,
    queue_id=LONG,
    outcome=TEXT,
    final=BOOL,
    message_id=LONG,
    size=LONG,
    consumer=LONG,
    delivery_count=INT,
    redelivered=BOOL,
    reason=TEXT,
    rule=TEXT,
    policy=TEXT,
    policy_version=LONG,
    exchange=TEXT,
    routing_key=TEXT,
    origin=struct(vhost=TEXT, queue=TEXT, queue_id=LONG, message_id=LONG, reason=TEXT),
)


def traced(history: pa.Schema) -> pa.Schema:
    """Columns of HISTORY, and the `trace` of a publish as JSON."""
    return pa.schema([*history, pa.field("trace", TEXT)])


# What became of spans that were sent to a collector. `waiting`: stays that have not ended
SPANS_SENT = table(sent=LONG, rejected=LONG, waiting=LONG, reason=TEXT)

# `change`: 1, a message came into the queue; -1, it left
DIFF = pa.schema([pa.field("change", INT), *HISTORY])

# `wait`: from the publish to the first delivery; `stay`: to the end. Null where there was none. `consumer` is null when
# the row is about all consumers, `since` when it is about the whole range.
SLO = table(
    vhost=TEXT,
    queue=TEXT,
    consumer=LONG,
    since=TIME,
    published=LONG,
    delivered=LONG,
    redelivered=LONG,
    redelivery_rate=FLOAT,
    ended=LONG,
    wait_p50_ms=FLOAT,
    wait_p95_ms=FLOAT,
    wait_p99_ms=FLOAT,
    wait_max_ms=LONG,
    stay_p50_ms=FLOAT,
    stay_p95_ms=FLOAT,
    stay_p99_ms=FLOAT,
    stay_max_ms=LONG,
)

# The rows of the folds behind SLO. `step` null: a sum of one range, or (with `wait_ms` or `stay_ms`) how many messages
# had that span. Else a step of one message that another range knows more about: 0 it was published here and is still in
# its queue (`known`: it was delivered here), 1 its first delivery in this range, 2 its end. `counts`: the step counts
WAITS = table(
    partition=TEXT,
    vhost=TEXT,
    queue=TEXT,
    consumer=LONG,
    since=TIME,
    published=LONG,
    delivered=LONG,
    redelivered=LONG,
    ended=LONG,
    wait_ms=LONG,
    stay_ms=LONG,
    messages=LONG,
    step=INT,
    queue_id=LONG,
    message_id=LONG,
    offset=LONG,
    at_ms=LONG,
    delivered_before=BOOL,
)

# `hidden`: the broker keeps the queue for itself (delayed messages, direct replies); no listing of the broker shows it
QUEUES = table(
    partition=TEXT,
    offset=LONG,
    clock=TIME,
    vhost=TEXT,
    queue=TEXT,
    queue_id=LONG,
    type=TEXT,
    durable=BOOL,
    exclusive=BOOL,
    auto_delete=BOOL,
    hidden=BOOL,
    arguments=TEXT,
    policy=TEXT,
    policy_version=LONG,
    operator_policy=TEXT,
    operator_policy_version=LONG,
    effective_policy_definition=TEXT,
    messages=LONG,
    messages_ready=LONG,
    messages_unacknowledged=LONG,
    message_bytes=LONG,
    message_bytes_ready=LONG,
    message_bytes_unacknowledged=LONG,
    messages_dlx=LONG,
    message_bytes_dlx=LONG,
    consumers=INT,
    counters=pa.map_(TEXT, LONG),
    digest=TEXT,
)

# `position` counts from the head of the queue; -1 when the message is with a consumer.
MESSAGES = table(
    partition=TEXT,
    vhost=TEXT,
    queue=TEXT,
    queue_id=LONG,
    message_id=LONG,
    position=LONG,
    state=TEXT,
    size=LONG,
    redelivered=BOOL,
    delivery_count=INT,
    expires=TIME,
    consumer=LONG,
    published=TIME,
    user=TEXT,
    exchange=TEXT,
    routing_key=TEXT,
    properties=BYTES,
    body=BYTES,
)

# Offsets and times of the oldest and of the newest event (`end_offset`: exclusive); `snapshots`: their offsets
PARTITIONS = table(
    partition=TEXT, start_offset=LONG, end_offset=LONG, first_event=TIME, last_event=TIME, snapshots=pa.list_(LONG)
)

# The rows of a fold to a moment: a row is either a queue or a message
STATE = table(queue=pa.struct(list(QUEUES)), message=pa.struct(list(MESSAGES)))

AUDIT = table(check=TEXT, ok=BOOL, partition=TEXT, offset=LONG, queue=TEXT, message_id=LONG, detail=TEXT)
# ... with the advice of audit/checks.py; both columns are empty for a check that holds
FINDINGS = pa.schema([*AUDIT, pa.field("severity", TEXT), pa.field("hint", TEXT)])

# `sequence`: the letter's number at its source, which is `vhost`, `queue`, `queue_id`. `kind`: 0 all up to the number
# `message_id` were forwarded, 1 sent, 2 given up, 3 arrived in `target` ("vhost/name"), whose offset is `offset`;
# before them -3 no letter gets a number up to `message_id`, -2 and -1 what a base says (audit/dead_letter_join.py).
# `source`, of what arrived: the source's partition as `Origin` names it; other rows are of the source's own partition
LETTERS = table(
    vhost=TEXT,
    queue=TEXT,
    queue_id=LONG,
    sequence=LONG,
    kind=INT,
    partition=TEXT,
    offset=LONG,
    time_ms=LONG,
    message_id=LONG,
    reason=TEXT,
    target=TEXT,
    exchange=TEXT,
    routing_key=TEXT,
    source=LONG,
)

# The rows of the audit of a partition: a row is either a finding or about a dead letter
AUDITED = table(finding=pa.struct(list(AUDIT)), letter=pa.struct(list(LETTERS)))

# what_if: a message that ends differently under the candidate (acked, expired, ready ...), with time and rule
FATES = table(
    candidate=TEXT,
    partition=TEXT,
    vhost=TEXT,
    queue=TEXT,
    message_id=LONG,
    before=TEXT,
    before_at=TIME,
    before_rule=TEXT,
    after=TEXT,
    after_at=TIME,
    after_rule=TEXT,
)
# ... the number of messages of each queue at moments, as recorded and under the candidate
DEPTHS = table(candidate=TEXT, partition=TEXT, vhost=TEXT, queue=TEXT, at=TIME, before=LONG, after=LONG)
# ... and how often consumers' actions could not stay as recorded: reactions that came later than recorded, that found
# no message any more, and acks of messages that no consumer had met
ASSUMPTIONS = table(candidate=TEXT, late_reactions=LONG, lost_reactions=LONG, guessed_acks=LONG)
# ... and, of one queue, the messages that would be in it at the end, in order (-1: with a consumer, as in MESSAGES)
STANDING = table(candidate=TEXT, partition=TEXT, vhost=TEXT, queue=TEXT, message_id=LONG, position=LONG)
WHAT_IF = table(
    fate=pa.struct(list(FATES)),
    depth=pa.struct(list(DEPTHS)),
    assumed=pa.struct(list(ASSUMPTIONS)),
    standing=pa.struct(list(STANDING)),
)
# without, by `kind`: 0 a message that is left out; 1 one that came of message `message_id` of the queue `source` (with
# its id; -1: any; and its partition as `Origin` names it); 2 that queue was declared here; 3 a user of a rule who did
# something
LEFT_OUT = table(
    kind=INT,
    partition=TEXT,
    offset=LONG,
    source=TEXT,
    source_id=LONG,
    source_home=LONG,
    message_id=LONG,
    user=TEXT,
)
