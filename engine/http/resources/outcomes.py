"""Outcomes of the history, without Spark. Rows have the columns of Spark's table HISTORY.

    GET /api/history/biography/{vhost}/{message}[?queue=][&truncate=]      the life of a message, such as queues-0:123
    GET /api/history/outcomes/{vhost}/{queue}[?tail=100][&until=]          the last outcomes in a queue
    GET /api/history/diff/{vhost}/{queue}?from=...[&to=...][&limit=]       what changed between two moments
    GET /api/history/depth/{vhost}/{queue}[?from=-1h][&to=][&points=200]   its length over time, and what people did
    GET /api/history/what-if/{vhost}/{queue}?policy=JSON[&operator_policy=JSON][&from=-1h][&to=-0s][&limit=100]
                                                                           what a policy would have done
    GET /api/history/traces/{vhost}[/{queue}]?since=...[&until=][&next=]   from the publishes on that belong to a trace

A user who may read a queue may ask about its past, back to its declaration. Only administrators see what came of a
message in other queues, and queues that are gone. The process that reads the past answers (engine/rewind/outcomes.py,
engine/rewind/what_if.py), within DEADLINE_SECONDS: an answer whose `complete` is false has what was found by then.

Traces: of the messages that were published from `since` to `until`. The row `published` of a message with a valid
header `traceparent` has `trace`, too; rows of other messages may be among them. A client makes spans of the rows
(projections/traces/spans.py). The same request with `next` goes on, until `next` is null; `left` is the number of
records that are still to be read.

A biography has the message itself, too: `message` as in an answer of a search (search.py), with `truncated`, and with
`body_gone`: why it has no body any more, or null.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response

from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.http.bodies import BadBody, json_object
from rewindmq.engine.http.call import ApiError, Call, bad_request, not_authorised, not_found, unless_gone
from rewindmq.engine.http.listing import Item
from rewindmq.engine.http.pieces import encode
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.resources.marks import mark_item, visible_marks
from rewindmq.engine.http.resources.past import history_in, log_refusal, number_of, read, readable_incarnation
from rewindmq.engine.http.resources.search import MAX_PARTITIONS, TRUNCATE, message_item, time_of, truncate_of
from rewindmq.engine.http.shapes.history import Biography, Changes, DepthOverTime, LastOutcomes, TracedOutcomes
from rewindmq.engine.http.shapes.history import WhatIf as WhatIfJson
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.location import History
from rewindmq.engine.rewind.depth import NeverThere, Point, Tick, depth
from rewindmq.engine.rewind.outcomes import Deadline, NoSuchMessage, biography, change_of, changes, last_outcomes
from rewindmq.engine.rewind.queue_at import NoSuchQueue
from rewindmq.engine.rewind.search import FoundMessage
from rewindmq.engine.rewind.stays import moment_in
from rewindmq.engine.rewind.trace_outcomes import Places, Portion, WantedTraces, traced_outcomes, whole, within
from rewindmq.engine.rewind.what_if import POLICY_NAME, World, candidate_for, what_if
from rewindmq.projections.history.biography import parse_message
from rewindmq.projections.history.outcome_rows import PUBLISHED, OutcomeRow
from rewindmq.projections.marks import name_in
from rewindmq.projections.rewind import At, RewindError, format_time
from rewindmq.projections.what_if.alternative import LIMITS, Candidate
from rewindmq.projections.what_if.fates import Difference

SPAN = (
    Query("from", str, "A time, how long ago (-1h), or mark:NAME; the default is -1h"),
    Query("to", str, "The same; the default is now"),
)


DEADLINE_SECONDS = 20.0
MAX_ROWS = 10_000  # in one answer
MAX_POINTS = 1_000
TRACE_PLACE = re.compile(r"([a-z]+-[0-9]{1,9}):([0-9]{1,18})\.([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class OutcomesQuestion:
    """A question for the process that reads the past. `find` makes the answer of the history, as JSON."""

    history: History
    find: Callable[[History], Item]

    def answer(self) -> "bytes | ApiError":
        try:
            return encode(self.find(self.history)).encode()
        except ApiError as error:
            return error
        except (NoSuchMessage, NoSuchQueue, NeverThere) as error:
            return not_found(str(error), "not_found")
        except RewindError as error:
            return bad_request(str(error))
        except LogError as error:
            return log_refusal(self.history, error)


async def ask(call: Call, find: Callable[[History], Item]) -> Response:
    """The answer of the process that reads the past."""
    params = call.request.path_params
    queue = call.segment("queue") if "queue" in params else call.request.query_params.get("queue", "")
    call.past_read(call.segment("vhost"), queue, call.request.url.query)
    await call.durable()  # a reader sees only written events
    return await found(call, find, queue or None)


async def found(call: Call, find: Callable[[History], Item], queue: str | None = None) -> Response:
    """Search the history for `find`, in the process that reads the past. The client may hang up.

    `queue`: the only one that the question is about."""
    vhost = call.request.path_params.get("vhost")
    question = OutcomesQuestion(history_in(call, "" if vhost is None else call.segment("vhost"), queue), find)

    async def answered() -> Response:
        return Response(await read(call.broker.past, question, call.user), media_type="application/json")

    return await unless_gone(call, answered())


def row_item(row: OutcomeRow) -> Item:
    """A row as JSON."""
    fields: dict[str, Any] = row.fields()
    return {"timestamp": None if row.time_ms is None else format_time(row.time_ms), **fields}


# -- biography --------------------------------------------------------------------------------------------------------


@operation(
    "Shows the life of a message, such as queues-0:123",
    folds=Folds.NAMED,
    query=(Query("queue", str, "Only in this queue; administrators may leave it out"), TRUNCATE),
    answer=Biography,
    errors=(429,),
)
async def show_biography(call: Call) -> Response:
    """Answers GET /api/history/biography/{vhost}/{message}."""
    vhost, text = call.segment("vhost"), call.segment("message")
    queue = call.request.query_params.get("queue")
    try:
        partition, message_id = parse_message(text)
    except ValueError as error:
        raise bad_request(str(error)) from None
    queue_id = None
    if "administrator" not in call.tags:
        if queue is None:
            raise bad_request("name a queue that you may read: ?queue=NAME; only administrators may leave it out")
        queue_id = await readable_incarnation(call, vhost, queue, None)
    truncate = truncate_of(call)
    keys = call.broker.subjects.keys.frozen()
    return await ask(call, partial(found_biography, vhost, partition, message_id, queue, queue_id, keys, truncate))


def found_biography(
    vhost: str,
    partition: str | None,
    message_id: int,
    queue: str | None,
    queue_id: int | None,
    keys: KeyStore,
    truncate: int,
    history: History,
) -> Item:
    """The life of a message as JSON. Raises NoSuchMessage, RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    found = biography(reader, history.snapshots, vhost, partition, message_id, queue, queue_id, deadline)
    only = None if queue_id is None else queue
    return {
        "message": published_item(found.message, Subjects("", keys, {}), truncate, only),
        "rows": [row_item(row) for row in found.rows],
        "complete": found.complete,
    }


def published_item(message: FoundMessage, subjects: Subjects, truncate: int, queue: str | None) -> Item:
    """The message of a biography as JSON. `queue`: the only queue that the user may know of; None: all are shown."""
    opened = replace(message, published=subjects.decrypt(message.published))
    item = message_item(opened, truncate, queue)
    properties: Any = item["properties"] if message.published.encryption is not None else {}
    headers = properties.get("headers", {})
    gone = None
    if "x-erased" in headers:
        gone = "its subject was erased"
    elif "x-expired-body" in headers:
        gone = f"the bodies of {headers['x-expired-body']} have expired"
    elif "x-unreadable" in headers:
        gone = str(headers["x-unreadable"])
    return item | {"truncated": len(opened.published.body) > truncate, "body_gone": gone}


# -- the last outcomes of a queue -------------------------------------------------------------------------------------


@operation(
    "Shows the last outcomes in a queue",
    folds=Folds.NAMED,
    query=(Query("tail", int, "At most 10,000; the default is 100"), Query("until", str, "A time")),
    answer=LastOutcomes,
    errors=(429,),
)
async def show_last(call: Call) -> Response:
    """Answers GET /api/history/outcomes/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    count = number_of(call, "tail", 100)
    if not 1 <= count <= MAX_ROWS:
        raise bad_request(f"tail is from 1 to {MAX_ROWS}")
    return await ask(call, partial(found_last, vhost, queue, queue_id, count, time_of(call, "until")))


def found_last(
    vhost: str, queue: str, queue_id: int | None, count: int, until_ms: int | None, history: History
) -> Item:
    """The last rows as JSON. Raises RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    tail = last_outcomes(reader, history.snapshots, vhost, queue, queue_id, count, until_ms, deadline)
    return {"partition": tail.partition, "rows": [row_item(row) for row in tail.rows], "complete": tail.complete}


# -- two moments ------------------------------------------------------------------------------------------------------


@operation(
    "Shows what changed in a queue between two moments",
    folds=Folds.NAMED,
    query=(
        Query("from", str, "A time, how long ago (-1h), or mark:NAME", required=True),
        SPAN[1],
        Query("limit", int, "Rows, at most 10,000; the default is 1,000"),
    ),
    answer=Changes,
    errors=(429,),
)
async def show_changes(call: Call) -> Response:
    """Answers GET /api/history/diff/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    most = number_of(call, "limit", 1_000)
    if most > MAX_ROWS:
        raise bad_request(f"limit is at most {MAX_ROWS}")
    query = call.request.query_params
    if "from" not in query:
        raise bad_request("give from, and to if it is not now")
    start, end = moment_of(call, vhost, queue, query["from"]), moment_of(call, vhost, queue, query.get("to", "-0s"))
    return await ask(call, partial(found_changes, vhost, queue, queue_id, start, end, most))


def moment_of(call: Call, vhost: str, queue: str, text: str) -> At:
    """The moment that a time or a mark means. Raises ApiError (400)."""
    text = text if name_in(text) else text.replace(" ", "+")  # an unencoded + is a space
    try:
        return moment_in(text, vhost, queue, call.broker.topology, len(call.broker.partitions))
    except RewindError as error:
        raise bad_request(str(error)) from None


def found_changes(
    vhost: str, queue: str, queue_id: int | None, start: At, end: At, most: int, history: History
) -> Item:
    """The changes as JSON. Raises RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    found = changes(reader, history.snapshots, vhost, queue, queue_id, start, end, most, deadline)
    return {
        "partition": found.partition,
        "from": found.start,
        "to": found.end,
        "summary": [
            {"outcome": outcome, "rule": rule, "user": user, "change": change}
            for (outcome, rule, user), change in found.sums.items()
        ],
        "rows": [{"change": change_of(row), **row_item(row)} for row in found.rows],
        "more": found.more,
        "complete": found.complete,
    }


# -- the length over time ---------------------------------------------------------------------------------------------


@operation(
    "Shows the length of a queue over time, and what people did",
    folds=Folds.NAMED,
    query=(*SPAN, Query("points", int, "From 2 to 1,000; the default is 200")),
    answer=DepthOverTime,
    errors=(429,),
)
async def show_depth(call: Call) -> Response:
    """Answers GET /api/history/depth/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    count = number_of(call, "points", 200)
    if not 2 <= count <= MAX_POINTS:
        raise bad_request(f"points is from 2 to {MAX_POINTS}")
    query = call.request.query_params
    start = moment_of(call, vhost, queue, query.get("from", "-1h"))
    end = moment_of(call, vhost, queue, query.get("to", "-0s"))
    return await ask(call, partial(found_depth, vhost, queue, queue_id, start, end, count, marks_in(call)))


def marks_in(call: Call) -> dict[str, list[Tick]]:
    """The marks that the user may see, as ticks of each partition."""
    ticks: dict[str, list[Tick]] = {}
    for mark in visible_marks(call).values():
        time_ms, user = call.broker.topology.marked[mark.name][0], str(mark_item(call, mark)["user"])
        for partition, offset in mark.positions:
            ticks.setdefault(partition, []).append(Tick(time_ms, offset, "mark", mark.name, user))
    return ticks


def found_depth(
    vhost: str,
    queue: str,
    queue_id: int | None,
    start: At,
    end: At,
    count: int,
    marks: dict[str, list[Tick]],
    history: History,
) -> Item:
    """The length over time as JSON. Raises NeverThere, RewindError, LogError."""
    found = depth(history, vhost, queue, queue_id, start, end, count, marks, Deadline(DEADLINE_SECONDS))
    points = found.points
    return {
        "partition": found.partition,
        "from": {"offset": points[0].offset, "time": format_time(points[0].time_ms)},
        "to": {"offset": points[-1].offset, "time": format_time(points[-1].time_ms)},
        "floor": found.floor,
        "points": [point_item(point) for point in points],
        "ticks": [tick_item(tick) for tick in found.ticks],
        "more_ticks": found.more_ticks,
        "complete": found.complete,
    }


def point_item(point: Point) -> Item:
    """A point as JSON."""
    outcomes = dict(point.outcomes)
    return {
        "time": format_time(point.time_ms),
        "offset": point.offset,
        "ready": point.ready,
        "unacked": point.unacked,
        "published": outcomes.pop("published", 0),
        "outcomes": outcomes,
    }


def tick_item(tick: Tick) -> Item:
    """A tick as JSON."""
    count = {"messages": tick.count} if tick.kind in ("purged", "removed", "moved", "restored") else {}
    fields = {"offset": tick.offset, "kind": tick.kind, "text": tick.text, "user": tick.user}
    return {"time": format_time(tick.time_ms), **fields, **count}


# -- another policy ---------------------------------------------------------------------------------------------------


@operation(
    "Shows what a policy would have done to a queue",
    folds=Folds.NAMED,
    query=(
        Query("policy", str, "The definition as JSON"),
        Query("operator_policy", str, "The definition as JSON"),
        *SPAN,
        Query("limit", int, "Messages, at most 10,000; the default is 100"),
    ),
    answer=WhatIfJson,
    errors=(429,),
)
async def show_what_if(call: Call) -> Response:
    """Answers GET /api/history/what-if/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    most = number_of(call, "limit", 100)
    if most > MAX_ROWS:
        raise bad_request(f"limit is at most {MAX_ROWS}")
    definition, operator_definition = definition_of(call, "policy"), definition_of(call, "operator_policy")
    if definition is None and operator_definition is None:
        raise bad_request("say what to try: policy, operator_policy, or both")
    candidate = candidate_for(queue, definition, operator_definition)
    query = call.request.query_params
    start = moment_of(call, vhost, queue, query.get("from", "-1h"))
    end = moment_of(call, vhost, queue, query.get("to", "-0s"))
    return await ask(call, partial(found_what_if, vhost, queue, queue_id, candidate, start, end, most))


def definition_of(call: Call, name: str, checked: bool = True) -> dict[str, Any] | None:
    """The definition of a policy in the query, `checked` as one that is set; an empty one means no policy.

    Raises ApiError (400), PreconditionFailed."""
    text = call.request.query_params.get(name)
    if text is None:
        return None
    try:
        if not text.strip():
            raise BadBody("it is empty")
        definition = json_object(text.encode("utf-8", "surrogatepass"))
    except BadBody as error:
        raise bad_request(f'{name} is not a JSON object such as {{"max-length": 1000}}: {error}') from None
    if definition and checked:
        follows = (call.broker.config.semantics, call.broker.topology.machine_version)
        checked_definition(POLICY_NAME, ".*", definition, 0, "queues", name == "operator_policy", *follows)
    return definition


def found_what_if(
    vhost: str,
    queue: str,
    queue_id: int | None,
    candidate: Candidate,
    start: At,
    end: At,
    most: int,
    history: History,
) -> Item:
    """The queue as it was, and as it would have been, as JSON. Raises NoSuchQueue, RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    found = what_if(reader, history.snapshots, vhost, queue, queue_id, candidate, start, end, most, deadline)
    return {
        "partition": found.partition,
        "from": found.start,
        "to": found.reached,
        "left": found.end - found.reached,
        "stopped": found.stopped,
        "before": world_item(found.before),
        "after": world_item(found.after),
        "summary": [
            {
                "before": before,
                "before_rule": before_rule or None,
                "after": after,
                "after_rule": after_rule or None,
                "messages": messages,
            }
            for (before, before_rule, after, after_rule), messages in found.changed.items()
        ],
        "rows": [difference_item(each) for each in found.first],
        "more": found.changed.total() - len(found.first),
        "assumptions": found.assumed,
        "limits": list(LIMITS),
        "complete": found.stopped is None,
    }


def world_item(world: World) -> Item:
    """A queue in one of the two folds, as JSON."""
    return {
        "outcomes": [
            {"outcome": outcome, "rule": rule or None, "messages": messages}
            for (outcome, rule), messages in sorted(world.outcomes.items())
        ],
        "greatest_depth": world.greatest_depth,
        "depth": world.depth,
    }


def difference_item(found: Difference) -> Item:
    """A message that would have ended differently, as JSON."""
    (before, before_ms, before_rule), (after, after_ms, after_rule) = found.before, found.after
    return {
        "message_id": found.message_id,
        "before": before,
        "before_at": format_time(before_ms),
        "before_rule": before_rule or None,
        "after": after,
        "after_at": format_time(after_ms),
        "after_rule": after_rule or None,
    }


# -- messages that belong to a trace -----------------------------------------------------------------------------------


@operation(
    "Shows the outcomes of messages that belong to a trace",
    folds=Folds.NAMED,
    query=(
        Query("since", str, "A time", required=True),
        Query("until", str, "A time"),
        Query("next", str, "From the answer before"),
    ),
    answer=TracedOutcomes,
    errors=(429,),
)
async def show_traces(call: Call) -> Response:
    """Answers GET /api/history/traces/{vhost} and /api/history/traces/{vhost}/{queue}."""
    vhost = call.segment("vhost")
    queue = call.segment("queue") if "queue" in call.request.path_params else None
    if queue is None and "administrator" not in call.tags:
        raise not_authorised("only administrators ask about all queues of a virtual host: name a queue")
    incarnation = None if queue is None else await readable_incarnation(call, vhost, queue, None)
    since_ms = time_of(call, "since")
    if since_ms is None:
        raise bad_request("give since, and until if it is not now")
    query = call.request.query_params
    places = places_from(query["next"]) if "next" in query else None
    wanted = WantedTraces(vhost, queue, incarnation, since_ms, time_of(call, "until"))
    return await ask(call, partial(found_traced, wanted, places))


def found_traced(wanted: WantedTraces, places: Places | None, history: History) -> Item:
    """A portion as JSON. Raises RewindError, LogError."""
    reader = history.open()
    allowed = whole(reader, wanted)
    left = allowed if places is None else within(places, allowed)
    portion = traced_outcomes(reader, history.snapshots, wanted, left)
    return {
        "rows": [traced_item(row, portion) for row in portion.rows],
        "left": portion.left,
        "next": next_of(portion.places) or None,
    }


def traced_item(row: OutcomeRow, portion: Portion) -> Item:
    """A row as JSON, of a publish with its trace."""
    trace = portion.traces.get(row.offset) if row.value("outcome") == PUBLISHED else None
    return row_item(row) if trace is None else row_item(row) | {"trace": asdict(trace)}


def next_of(places: Places) -> str:
    """Places as the `next` of an answer."""
    return ",".join(f"{name}:{offset}.{ordinal}-{end}" for name, (offset, ordinal, end) in places.items())


def places_from(text: str) -> Places:
    """The places in a `next`. Raises ApiError (400)."""
    places: Places = {}
    for part in text.split(",", MAX_PARTITIONS):
        found = TRACE_PLACE.fullmatch(part)
        if found is None:
            raise bad_request("next is not from an answer about traces")
        places[found[1]] = int(found[2]), int(found[3]), int(found[4])
    return places
