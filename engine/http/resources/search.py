"""Messages of the history by what is in them: GET /api/history/find/{vhost}[/{queue}]?message_id=...

    message_id, correlation_id, header (NAME=VALUE), body      one of them, or several, which all have to match
    unrouted                                                   true: only messages that no queue took
    since, until                                               times, as for a queue at a moment
    limit, truncate                                            messages in an answer, bytes of each body
    next                                                       from the answer before: the search goes on there

An answer comes after about a second. It has the messages that were found by then, how many records were searched, how
many of these were `read` (an index of ids spares the others), how many are `left`, and `next`; a client that wants more
asks again. So no search holds the process that reads the past for long (engine/rewind/search.py), and the search of a
client that goes is over.

A user who may read the queue may search its past, back to its declaration. Only administrators search a whole vhost. A
search by something that is withheld from the user (engine/rewind/masks.py) is refused: 401.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from rewindmq.engine.broker.access_control import UNMASKED, WITHOUT_CONTENTS
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.http.call import ApiError, Call, bad_request, not_authorised, unless_gone
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.resources.past import history_in, log_refusal, number_of, read, readable_incarnation
from rewindmq.engine.http.shapes.history import FoundMessagesView, FoundMessageView
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.rewind.id_index import Indexed
from rewindmq.engine.rewind.masks import Withheld
from rewindmq.engine.rewind.search import Ranges, SearchLimits, records_in, search, whole
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.machine.rules.legal_values import HEADER_MASK
from rewindmq.projections.rewind import RewindError, parse_time
from rewindmq.schemas.json_values import compact_text

TRUNCATE = Query("truncate", int, "Bytes of each body, at most 65,536; the default is 1,024")


MAX_LIMIT = 1_000  # messages in one answer
MAX_BODY_SHOWN = 65_536  # bytes of each body
BODY_SHOWN = 1_024  # ... unless `truncate` says another number
MAX_SHOWN = 4_194_304  # bytes of all bodies together
PORTION_SECONDS = 1.0
MAX_TEXT = 4_096  # bytes of each thing that is searched for
MAX_PARTITIONS = 10_000
RANGE = re.compile(r"([a-z]+-[0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A portion of a search, for the process that reads the past.

    `ranges`: what is left; None: the search begins. `first`: the user may read nothing below this offset.
    `only_queue`: the user may know of no other queue. `index`: what is known of an id that is wanted, by partition."""

    history: Location
    criteria: Criteria
    first: int
    since_ms: int | None
    until_ms: int | None
    ranges: Ranges | None
    limits: SearchLimits
    keys: KeyStore
    only_queue: bool
    index: Mapping[str, Indexed]
    withheld: Withheld

    def answer(self) -> "bytes | ApiError":
        try:
            return compact_text(found_in(self)).encode()
        except LogError as error:
            return log_refusal(self.history, error)


def found_in(question: SearchQuestion) -> FoundMessagesView:
    """Return the answer. Raises LogError."""
    reader = question.history.open()
    ranges = whole(reader, question.criteria, question.first, question.since_ms, question.until_ms)
    if question.ranges is not None:
        ranges = within(question.ranges, ranges)
    subjects = Subjects("", question.keys, {})
    page = search(
        reader,
        question.criteria,
        ranges,
        question.limits,
        subjects,
        question.since_ms,
        question.index,
        question.withheld,
    )
    queue = question.criteria.queue if question.only_queue else None
    messages = [FoundMessageView.cut(each, question.limits.body_bytes, queue) for each in page.found]
    left = records_in(page.ranges)
    return FoundMessagesView.of(page, messages=messages, left=left, next=text_of(page.ranges) or None)


def within(asked: Ranges, allowed: Ranges) -> Ranges:
    """Return the part of the ranges that may be searched."""
    parts = {
        name: (max(first, allowed[name][0]), min(end, allowed[name][1]))
        for name, (first, end) in asked.items()
        if name in allowed
    }
    return {name: (first, end) for name, (first, end) in parts.items() if first < end}


def text_of(ranges: Ranges) -> str:
    """Return ranges as the `next` of an answer."""
    return ",".join(f"{name}:{first}-{end}" for name, (first, end) in ranges.items())


def ranges_from(text: str) -> Ranges:
    """Return the ranges in a `next`. Raises ApiError (400)."""
    ranges: Ranges = {}
    for part in text.split(",", MAX_PARTITIONS):
        found = RANGE.fullmatch(part)
        if found is None:
            raise bad_request("next is not from an answer to a search")
        ranges[found[1]] = int(found[2]), int(found[3])
    return ranges


@operation(
    "Finds messages of the history by what is in them",
    folds=Folds.NAMED,
    query=(
        Query("message_id", str, "The property message_id"),
        Query("correlation_id", str, "The property correlation_id"),
        Query("header", str, "NAME=VALUE"),
        Query("body", str, "A text in the body"),
        Query("unrouted", bool, "Only messages that no queue took; a whole virtual host is searched"),
        Query("since", str, "A time"),
        Query("until", str, "A time"),
        Query("limit", int, "Messages, at most 1,000; the default is 100"),
        TRUNCATE,
        Query("next", str, "From the answer before"),
    ),
    answer=FoundMessagesView,
    errors=(429,),
)
async def find(call: Call) -> Response:
    """Answer GET /api/history/find/{vhost} and /api/history/find/{vhost}/{queue}."""
    vhost = call.segment("vhost")
    queue = call.segment("queue") if "queue" in call.request.path_params else None
    administrator = "administrator" in call.tags
    if queue is None and not administrator:
        raise not_authorised("only administrators search all queues of a virtual host: name a queue")
    incarnation = None if queue is None else await readable_incarnation(call, vhost, queue, None)
    criteria, withheld = criteria_of(call, vhost, queue), call.withheld(vhost)
    require_no_probe(criteria, withheld)
    query = call.request.query_params
    limit, truncate = number_of(call, "limit", 100), truncate_of(call)
    if not 1 <= limit <= MAX_LIMIT:
        raise bad_request(f"limit is from 1 to {MAX_LIMIT}")
    ranges = ranges_from(query["next"]) if "next" in query else None
    call.past_read(vhost, queue or "", words_of(query))
    if ranges is None:
        await call.durable()  # a reader sees only written events
    question = SearchQuestion(
        history_in(call, vhost, queue),
        criteria=criteria,
        first=incarnation or 0,
        since_ms=time_of(call, "since"),
        until_ms=time_of(call, "until"),
        ranges=ranges,
        limits=SearchLimits(limit, truncate, MAX_SHOWN, PORTION_SECONDS),
        keys=call.broker.subjects.keys.frozen(),
        only_queue=not administrator,
        index=await indexed_in(call, criteria, ranges),
        withheld=withheld,
    )
    return await unless_gone(call, answer_to(call, question))


async def indexed_in(call: Call, criteria: Criteria, ranges: Ranges | None) -> Mapping[str, Indexed]:
    """Return the entries that the index of ids has for the wanted id, by partition.

    Empty if there is no index, or if the search has no id."""
    wanted = criteria.id()
    if wanted is None:
        return {}
    ends = None if ranges is None else {name: end for name, (_, end) in ranges.items()}
    return await call.broker.history.id_index.lookup(*wanted, ends)


def words_of(query: Mapping[str, str]) -> str:
    """Return the text of a search for the history, which nobody can erase: possible personal data is left out."""
    told = {name: value for name, value in query.items() if name not in ("next", "limit", "truncate")}
    return "&".join(name if name in ("header", "body", "correlation_id") else f"{name}={told[name]}" for name in told)


async def answer_to(call: Call, question: SearchQuestion) -> Response:
    """Return the answer of the process that reads the past."""
    return Response(await read(call.broker.history.past, question, call.user), media_type="application/json")


def criteria_of(call: Call, vhost: str, queue: str | None) -> Criteria:
    """Return the criteria that a query states. Raises ApiError (400)."""
    query = call.request.query_params
    given = {name: query[name] for name in ("message_id", "correlation_id", "header", "body") if name in query}
    for name, value in given.items():
        if not 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_TEXT:
            raise bad_request(f"{name} has from 1 to {MAX_TEXT} bytes")
    unrouted = call.asks("unrouted")
    if not given and not unrouted:
        raise bad_request("say what to find: message_id, correlation_id, header, body or unrouted")
    if unrouted and queue is not None:
        raise bad_request("an unrouted message is in no queue: leave the queue out")
    header = None
    if "header" in given:
        name, separator, value = given["header"].partition("=")
        if not separator or not name:
            raise bad_request("header is NAME=VALUE")
        header = name, value
    body = given["body"].encode() if "body" in given else None
    return Criteria(vhost, queue, given.get("message_id"), given.get("correlation_id"), header, body, unrouted)


def require_no_probe(criteria: Criteria, withheld: Withheld) -> None:
    """Raise ApiError (401) for a search by something that is withheld: its answer would tell it."""
    masks = withheld.in_search(criteria.queue)
    if withheld.contents and (criteria.header or criteria.body is not None):
        raise not_authorised(f"a user with the tag {WITHOUT_CONTENTS} searches neither by header nor by body")
    if criteria.header is not None and HEADER_MASK + criteria.header[0] in masks:
        raise not_authorised(
            f"a policy masks the header '{criteria.header[0]}': only users with the tag {UNMASKED} search by it"
        )
    if criteria.body is not None and any(not mask.startswith(HEADER_MASK) for mask in masks):
        raise not_authorised(f"a policy masks bodies: only users with the tag {UNMASKED} search by body")


def truncate_of(call: Call) -> int:
    """Return the number of bytes that are shown of a body. Raises ApiError (400)."""
    truncate = number_of(call, "truncate", BODY_SHOWN)
    if truncate > MAX_BODY_SHOWN:
        raise bad_request(f"truncate is at most {MAX_BODY_SHOWN}")
    return truncate


def time_of(call: Call, name: str) -> int | None:
    """Return a time of the query, or None. Raises ApiError (400)."""
    text = call.request.query_params.get(name)
    if text is None:
        return None
    try:
        return parse_time(text.replace(" ", "+"))  # an unencoded + is a space
    except RewindError as error:
        raise bad_request(f"{name}: {error}") from None
