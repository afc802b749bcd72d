"""Outcomes of the history, without Spark. Rows have the columns of Spark's table HISTORY.

    GET /api/history/biography/{vhost}/{message}[?queue=][&truncate=]      the life of a message, such as queues-0:123
    GET /api/history/outcomes/{vhost}/{queue}[?tail=100][&until=]          the last outcomes in a queue
    GET /api/history/diff/{vhost}/{queue}?from=...[&to=...][&limit=]       what changed between two moments
    GET /api/history/depth/{vhost}/{queue}[?from=-1h][&to=][&points=200]   its length over time, and what people did
    GET /api/history/what-if/{vhost}/{queue}?policy=JSON[&operator_policy=JSON][&from=-1h][&to=-0s][&limit=100]
                                                                           what a policy would have done
    GET /api/history/traces/{vhost}[/{queue}]?since=...[&until=][&next=]   from the publishes on that belong to a trace

A user who may read a queue may ask about its past, back to its declaration. Only administrators see the outcomes of a
message in other queues, and queues that are gone. The process that reads the past answers (engine/rewind/outcomes.py,
engine/rewind/what_if.py), within DEADLINE_SECONDS: an answer whose `complete` is false has what was found by then.

Traces: of the messages that were published from `since` to `until`. The row `published` of a message with a valid
header `traceparent` has `trace`, too; rows of other messages may be among them. A client makes spans of the rows
(projections/traces/spans.py). The same request with `next` goes on, until `next` is null; `left` is the number of
records that are still to be read.

A biography has the message itself, too: `message` as in an answer of a search (search.py), with `truncated`, and with
`body_gone`: why its body is gone, or null.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response

from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.http.bodies import BadBody, json_object
from rewindmq.engine.http.call import ApiError, Call, bad_request, not_authorised, not_found, unless_gone
from rewindmq.engine.http.properties import properties_of
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.resources.marks import visible_marks
from rewindmq.engine.http.resources.past import history_in, log_refusal, number_of, read, readable_incarnation
from rewindmq.engine.http.resources.search import MAX_PARTITIONS, TRUNCATE, time_of, truncate_of
from rewindmq.engine.http.shapes.history import (
    BiographyMessageView,
    BiographyView,
    ChangesView,
    DepthOverTimeView,
    LastOutcomesView,
    MarkView,
    OutcomeView,
    TracedOutcomesView,
    TracedOutcomeView,
    TraceView,
    WhatIfView,
)
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.rewind.depth import DepthTick, NeverThere, depth
from rewindmq.engine.rewind.masks import Withheld
from rewindmq.engine.rewind.outcomes import Deadline, NoSuchMessage, biography, changes, last_outcomes
from rewindmq.engine.rewind.partition_visits import moment_in
from rewindmq.engine.rewind.queue_at import NoSuchQueue
from rewindmq.engine.rewind.search import FoundMessage
from rewindmq.engine.rewind.trace_outcomes import Places, TracePortion, WantedTraces, traced_outcomes, whole, within
from rewindmq.engine.rewind.what_if import POLICY_NAME, candidate_for, what_if
from rewindmq.projections.history.biography import parse_message
from rewindmq.projections.history.outcome_rows import PUBLISHED, OutcomeRow
from rewindmq.projections.machine.rules.legal_values import HEADER_MASK
from rewindmq.projections.marks import name_in
from rewindmq.projections.rewind import At, RewindError
from rewindmq.projections.what_if.alternative import Candidate
from rewindmq.schemas.json_values import compact_text

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

    history: Location
    find: Callable[[Location], object]

    def answer(self) -> "bytes | ApiError":
        try:
            return compact_text(self.find(self.history)).encode()
        except ApiError as error:
            return error
        except (NoSuchMessage, NoSuchQueue, NeverThere) as error:
            return not_found(str(error), "not_found")
        except RewindError as error:
            return bad_request(str(error))
        except LogError as error:
            return log_refusal(self.history, error)


async def ask(call: Call, find: Callable[[Location], object]) -> Response:
    """Return the answer of the process that reads the past."""
    params = call.request.path_params
    queue = call.segment("queue") if "queue" in params else call.request.query_params.get("queue", "")
    call.past_read(call.segment("vhost"), queue, call.request.url.query)
    await call.durable()  # a reader sees only written events
    return await found(call, find, queue or None)


async def found(call: Call, find: Callable[[Location], object], queue: str | None = None) -> Response:
    """Search the history for `find`, in the process that reads the past. The client may hang up.

    `queue`: the only one that the question is about."""
    vhost = call.request.path_params.get("vhost")
    question = OutcomesQuestion(history_in(call, "" if vhost is None else call.segment("vhost"), queue), find)

    async def answered() -> Response:
        return Response(await read(call.broker.history.past, question, call.user), media_type="application/json")

    return await unless_gone(call, answered())


# -- biography --------------------------------------------------------------------------------------------------------


@operation(
    "Shows the life of a message, such as queues-0:123",
    folds=Folds.NAMED,
    query=(Query("queue", str, "Only in this queue; administrators may leave it out"), TRUNCATE),
    answer=BiographyView,
    errors=(429,),
)
async def show_biography(call: Call) -> Response:
    """Answer GET /api/history/biography/{vhost}/{message}."""
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
    about = vhost, partition, message_id, queue, queue_id
    return await ask(call, partial(found_biography, *about, keys, truncate, call.withheld(vhost)))


def found_biography(
    vhost: str,
    partition: str | None,
    message_id: int,
    queue: str | None,
    queue_id: int | None,
    keys: KeyStore,
    truncate: int,
    withheld: Withheld,
    history: Location,
) -> BiographyView:
    """Return the life of a message. Raises NoSuchMessage, RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    found = biography(reader, history.snapshots, vhost, partition, message_id, queue, queue_id, deadline)
    only = None if queue_id is None else queue
    return BiographyView(
        message=published(found.message, Subjects("", keys, {}), truncate, only, withheld),
        rows=[OutcomeView.of_row(row) for row in found.rows],
        complete=found.complete,
    )


def published(
    message: FoundMessage, subjects: Subjects, truncate: int, queue: str | None, withheld: Withheld
) -> BiographyMessageView:
    """Return the message of a biography. `queue`: the only queue that the user may know of; None: all are shown."""
    opened = replace(message, published=subjects.decrypt(message.published))
    headers: Any = {}
    if message.published.encryption is not None:
        headers = properties_of(opened.published.properties).get("headers", {})
    gone = None
    if "x-erased" in headers:
        gone = "its subject was erased"
    elif "x-expired-body" in headers:
        gone = f"the bodies of {headers['x-expired-body']} have expired"
    elif "x-unreadable" in headers:
        gone = str(headers["x-unreadable"])
    seen = replace(opened, published=withheld.hide(opened.published, queue))
    truncated = len(seen.published.body) > truncate
    return BiographyMessageView.cut(seen, truncate, queue, truncated=truncated, body_gone=gone)


# -- the last outcomes of a queue -------------------------------------------------------------------------------------


@operation(
    "Shows the last outcomes in a queue",
    folds=Folds.NAMED,
    query=(Query("tail", int, "At most 10,000; the default is 100"), Query("until", str, "A time")),
    answer=LastOutcomesView,
    errors=(429,),
)
async def show_last(call: Call) -> Response:
    """Answer GET /api/history/outcomes/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    count = number_of(call, "tail", 100)
    if not 1 <= count <= MAX_ROWS:
        raise bad_request(f"tail is from 1 to {MAX_ROWS}")
    return await ask(call, partial(found_last, vhost, queue, queue_id, count, time_of(call, "until")))


def found_last(
    vhost: str, queue: str, queue_id: int | None, count: int, until_ms: int | None, history: Location
) -> LastOutcomesView:
    """Return the last rows. Raises RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    tail = last_outcomes(reader, history.snapshots, vhost, queue, queue_id, count, until_ms, deadline)
    return LastOutcomesView.of(tail, rows=[OutcomeView.of_row(row) for row in tail.rows])


# -- two moments ------------------------------------------------------------------------------------------------------


@operation(
    "Shows what changed in a queue between two moments",
    folds=Folds.NAMED,
    query=(
        Query("from", str, "A time, how long ago (-1h), or mark:NAME", required=True),
        SPAN[1],
        Query("limit", int, "Rows, at most 10,000; the default is 1,000"),
    ),
    answer=ChangesView,
    errors=(429,),
)
async def show_changes(call: Call) -> Response:
    """Answer GET /api/history/diff/{vhost}/{queue}."""
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
    """Return the moment that a time or a mark means. Raises ApiError (400)."""
    text = text if name_in(text) else text.replace(" ", "+")  # an unencoded + is a space
    try:
        return moment_in(text, vhost, queue, call.broker.topology, len(call.broker.partitions))
    except RewindError as error:
        raise bad_request(str(error)) from None


def found_changes(
    vhost: str, queue: str, queue_id: int | None, start: At, end: At, most: int, history: Location
) -> ChangesView:
    """Return the changes. Raises RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    return ChangesView.of(changes(reader, history.snapshots, vhost, queue, queue_id, start, end, most, deadline))


# -- the length over time ---------------------------------------------------------------------------------------------


@operation(
    "Shows the length of a queue over time, and what people did",
    folds=Folds.NAMED,
    query=(*SPAN, Query("points", int, "From 2 to 1,000; the default is 200")),
    answer=DepthOverTimeView,
    errors=(429,),
)
async def show_depth(call: Call) -> Response:
    """Answer GET /api/history/depth/{vhost}/{queue}."""
    vhost, queue = call.segment("vhost"), call.segment("queue")
    queue_id = await readable_incarnation(call, vhost, queue, None)
    count = number_of(call, "points", 200)
    if not 2 <= count <= MAX_POINTS:
        raise bad_request(f"points is from 2 to {MAX_POINTS}")
    query = call.request.query_params
    start = moment_of(call, vhost, queue, query.get("from", "-1h"))
    end = moment_of(call, vhost, queue, query.get("to", "-0s"))
    return await ask(call, partial(found_depth, vhost, queue, queue_id, start, end, count, marks_in(call)))


def marks_in(call: Call) -> dict[str, list[DepthTick]]:
    """Return the marks that the user may see, as ticks of each partition."""
    ticks: dict[str, list[DepthTick]] = {}
    for mark in visible_marks(call).values():
        time_ms, user = call.broker.topology.marked[mark.name][0], MarkView.of(mark, call).user
        for partition, offset in mark.positions:
            ticks.setdefault(partition, []).append(DepthTick(time_ms, offset, "mark", mark.name, user))
    return ticks


def found_depth(
    vhost: str,
    queue: str,
    queue_id: int | None,
    start: At,
    end: At,
    count: int,
    marks: dict[str, list[DepthTick]],
    history: Location,
) -> DepthOverTimeView:
    """Return the length over time. Raises NeverThere, RewindError, LogError."""
    deadline = Deadline(DEADLINE_SECONDS)
    return DepthOverTimeView.of(depth(history, vhost, queue, queue_id, start, end, count, marks, deadline))


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
    answer=WhatIfView,
    errors=(429,),
)
async def show_what_if(call: Call) -> Response:
    """Answer GET /api/history/what-if/{vhost}/{queue}."""
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
    """Return the definition of a policy in the query, `checked` as one that is set; an empty one means no policy.

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
    history: Location,
) -> WhatIfView:
    """Return the queue as it was, and as it would have been. Raises NoSuchQueue, RewindError, LogError."""
    reader, deadline = history.open(), Deadline(DEADLINE_SECONDS)
    return WhatIfView.of(
        what_if(reader, history.snapshots, vhost, queue, queue_id, candidate, start, end, most, deadline)
    )


# -- messages that belong to a trace -----------------------------------------------------------------------------------


@operation(
    "Shows the outcomes of messages that belong to a trace",
    folds=Folds.NAMED,
    query=(
        Query("since", str, "A time", required=True),
        Query("until", str, "A time"),
        Query("next", str, "From the answer before"),
    ),
    answer=TracedOutcomesView,
    errors=(429,),
)
async def show_traces(call: Call) -> Response:
    """Answer GET /api/history/traces/{vhost} and /api/history/traces/{vhost}/{queue}."""
    vhost = call.segment("vhost")
    queue = call.segment("queue") if "queue" in call.request.path_params else None
    if queue is None and "administrator" not in call.tags:
        raise not_authorised("only administrators ask about all queues of a virtual host: name a queue")
    incarnation = None if queue is None else await readable_incarnation(call, vhost, queue, None)
    withheld = call.withheld(vhost)
    if withheld.contents or f"{HEADER_MASK}traceparent" in withheld.in_search(None):  # also an exchange's
        raise not_authorised("traces are in headers, which are withheld from this user")
    since_ms = time_of(call, "since")
    if since_ms is None:
        raise bad_request("give since, and until if it is not now")
    query = call.request.query_params
    places = places_from(query["next"]) if "next" in query else None
    wanted = WantedTraces(vhost, queue, incarnation, since_ms, time_of(call, "until"))
    return await ask(call, partial(found_traced, wanted, places))


def found_traced(wanted: WantedTraces, places: Places | None, history: Location) -> TracedOutcomesView:
    """Return a portion. Raises RewindError, LogError."""
    reader = history.open()
    allowed = whole(reader, wanted)
    left = allowed if places is None else within(places, allowed)
    portion = traced_outcomes(reader, history.snapshots, wanted, left)
    rows = [traced(row, portion) for row in portion.rows]
    return TracedOutcomesView.of(portion, rows=rows, next=next_of(portion.places) or None)


def traced(row: OutcomeRow, portion: TracePortion) -> TracedOutcomeView:
    """Return a row, of a publish with its trace."""
    trace = portion.traces.get(row.offset) if row.value("outcome") == PUBLISHED else None
    return TracedOutcomeView.of_row(row, **({} if trace is None else {"trace": TraceView.of(trace)}))


def next_of(places: Places) -> str:
    """Return places as the `next` of an answer."""
    return ",".join(f"{name}:{offset}.{ordinal}-{end}" for name, (offset, ordinal, end) in places.items())


def places_from(text: str) -> Places:
    """Return the places in a `next`. Raises ApiError (400)."""
    places: Places = {}
    for part in text.split(",", MAX_PARTITIONS):
        found = TRACE_PLACE.fullmatch(part)
        if found is None:
            raise bad_request("next is not from an answer about traces")
        places[found[1]] = int(found[2]), int(found[3]), int(found[4])
    return places
