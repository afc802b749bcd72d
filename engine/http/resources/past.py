"""A queue as it was: GET /api/queues/{vhost}/{queue}/at?time=...|offset=...[&partition=] [&first=0] [&count=100].

`time` is ISO 8601 with a zone, milliseconds since the epoch, how long ago (`10m`), or mark:NAME; `offset` is one of
`partition`, by default of the partition in which the queue is now, because it may have moved. A user who may read the
queue may read its past, back to its declaration: an earlier queue of the same name is another incarnation. An
administrator may also ask for queues and vhosts that are gone, and for an `incarnation` by its queue id.

The fold runs in a separate process (engine/rewind/worker.py), which also makes the answer's JSON. It reads the log as
any other reader does, in the data directory or in Kafka. An answer has the first messages, up to MAX_SHOWN bytes of
bodies. The process gives a question up when its client hangs up.
"""

from dataclasses import dataclass, replace

from starlette.responses import Response

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.http.call import ApiError, Call, bad_request, natural, not_authorised, not_found, unless_gone
from rewindmq.engine.http.reference.operation import Folds, Query, operation
from rewindmq.engine.http.shapes.queues import PastQueueView
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.rewind import worker
from rewindmq.engine.rewind.masks import Withheld
from rewindmq.engine.rewind.partition_visits import is_unclear, lineage_of, moment_in
from rewindmq.engine.rewind.queue_at import NoSuchQueue, history_of, queue_at, waypoints_of
from rewindmq.engine.rewind.worker import ProcessEnded, TooManyQuestions, WorkerPool
from rewindmq.projections.marks import name_in
from rewindmq.projections.rewind import At, RewindError
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.schemas.events import Published
from rewindmq.schemas.json_values import compact_text

MAX_COUNT = 10_000  # messages in one answer
MAX_BODY_SHOWN = 65_536  # bytes of each body, unless `truncate` says less
MAX_SHOWN = 16_777_216  # bytes of all bodies together


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """A question to the process that reads the past."""

    history: Location
    vhost: str
    queue: str
    at: At
    first: int
    count: int
    truncate: int
    keys: KeyStore
    withheld: Withheld
    incarnation: int | None = None

    def answer(self) -> "bytes | ApiError":
        found = read_past(self)
        return found if isinstance(found, ApiError) else compact_text(found).encode()


async def read(process: WorkerPool, question: "worker.Question[bytes | ApiError]", user: str) -> bytes:
    """Return the answer, as JSON."""
    try:
        found = await process.ask(question, user)
    except ProcessEnded as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    except TooManyQuestions as error:
        raise ApiError(429, "too_many_requests", str(error)) from None
    except RuntimeError as error:
        raise ApiError(500, "internal_error", str(error)) from None
    if isinstance(found, ApiError):
        raise found
    return found


def read_past(question: PastQuestion) -> PastQueueView | ApiError:
    """Return the answer, or the refusal as a value: it has to go through the pipe."""
    try:
        past = queue_at(
            question.history,
            question.vhost,
            question.queue,
            question.at,
            question.first,
            question.count,
            question.incarnation,
            BodyCut(Subjects("", question.keys, {}), question.truncate, question.withheld, question.queue),
            MAX_SHOWN,
            waypoints_of(question.history),
        )
        return PastQueueView.of(past, question.truncate)
    except NoSuchQueue as error:
        return not_found(str(error), "not_found")
    except RewindError as error:
        return bad_request(str(error))
    except LogError as error:
        return log_refusal(question.history, error)


def log_refusal(history: Location, error: LogError) -> ApiError:
    """Return the error for a history that cannot be read: 503 if a later attempt may succeed, otherwise 500."""
    if isinstance(error, NoAnswer) or (history.may_answer_later and not isinstance(error, CorruptLog)):
        return ApiError(503, "service_unavailable", str(error))
    return ApiError(500, "log_error", str(error))


@operation(
    "Shows a queue as it was",
    folds=Folds.NAMED,
    query=(
        Query("time", str, "A time, how long ago (-10m), or mark:NAME; or give offset"),
        Query("offset", int, "Of the queue's partition"),
        Query(
            "partition", str, "The one that the offset is of, such as queues-0; the default is where the queue is now"
        ),
        Query("first", int, "Messages before it are left out; the default is 0"),
        Query("count", int, "Messages, at most 10,000; the default is 100"),
        Query("truncate", int, "Bytes of each body, at most 65,536"),
        Query("incarnation", int, "A queue id, for administrators"),
    ),
    answer=PastQueueView,
    errors=(429,),
)
async def at(call: Call) -> Response:
    """Answer GET /api/queues/{vhost}/{queue}/at."""
    vhost, name = call.segment("vhost"), call.segment("queue")
    asked = number_of(call, "incarnation", 0) if "incarnation" in call.request.query_params else None
    incarnation = await readable_incarnation(call, vhost, name, asked)
    when = moment_of(call, vhost, name)
    first, count = number_of(call, "first", 0), number_of(call, "count", 100)
    truncate = number_of(call, "truncate", MAX_BODY_SHOWN)
    if count > MAX_COUNT or truncate > MAX_BODY_SHOWN:
        raise bad_request(f"count is at most {MAX_COUNT}, truncate at most {MAX_BODY_SHOWN}")
    if when.offset is None or when.offset > durable_offset(call, vhost, name):
        await call.durable()  # a reader sees only written events
    call.moment_read(vhost, name, asked, when)
    keys = call.broker.subjects.keys.frozen()
    question = PastQuestion(
        history_in(call, vhost, name),
        vhost=vhost,
        queue=name,
        at=when,
        first=first,
        count=count,
        truncate=truncate,
        keys=keys,
        withheld=call.withheld(vhost),
        incarnation=incarnation,
    )
    return await unless_gone(call, answer_to(call, question))


def history_in(call: Call, vhost: str, queue: str | None) -> Location:
    """Return the broker's history, for a question about this queue (None: about all)."""
    placement = call.broker.topology.placement
    only = None if queue is None and placement.count else placement.only(vhost, queue or "")
    return history_of(call.broker.config, only)


async def answer_to(call: Call, question: PastQuestion) -> Response:
    """Return the answer of the process that reads the past."""
    return Response(await read(call.broker.history.past, question, call.user), media_type="application/json")


def durable_offset(call: Call, vhost: str, name: str) -> int:
    """Return the offset up to which the queue's partition is durable; 0 if the queue does not exist now."""
    partition = call.broker.queues.partition_for(vhost, name)
    return 0 if partition.machine.queue(vhost, name) is None else partition.durable_offset


async def readable_incarnation(call: Call, vhost: str, name: str, asked: int | None) -> int | None:
    """Return the queue id whose past this user may read; None: all queues that had the name. The partition of the queue
    is folded only for a user who has to be able to read the queue that is there now.

    Raises AccessRefused, ResourceLocked, ApiError (401; 404 if there is none)."""
    if "administrator" in call.tags:
        return asked
    call.broker.access.control.check(call, vhost, "read", "queue", name)
    await call.broker.queues.partition_for(vhost, name).enter()
    queue = call.broker.queues.get(vhost, name)
    if queue is None or is_hidden(name):
        raise not_found(f"no queue '{name}' in vhost '{vhost}'; only administrators may look at one that is gone")
    call.require_read(queue)
    placement = call.broker.topology.placement
    if is_unclear(placement, vhost, name, queue.queue_id):
        raise not_authorised(
            f"an earlier queue of this name was incarnation {queue.queue_id}, too: ask an administrator"
        )
    same = lineage_of(placement, vhost, name, queue.queue_id)
    if asked not in (None, queue.queue_id) and all(asked != life for _, life in same.lives):
        raise not_authorised(f"only administrators may look at another incarnation than {queue.queue_id}")
    return queue.queue_id


def moment_of(call: Call, vhost: str, name: str) -> At:
    """Return the moment that `time` or `offset` means. Raises ApiError (400)."""
    query = call.request.query_params
    if ("time" in query) == ("offset" in query):
        raise bad_request("give either time or offset")
    if "offset" in query:
        return At(offset=number_of(call, "offset", 0), partition=query.get("partition"))
    if "partition" in query:
        raise bad_request("a partition belongs to an offset")
    try:
        text = query["time"] if name_in(query["time"]) else query["time"].replace(" ", "+")  # an unencoded + is a space
        return moment_in(text, vhost, name, call.broker.topology, len(call.broker.partitions))
    except RewindError as error:
        raise bad_request(str(error)) from None


def number_of(call: Call, name: str, default: int) -> int:
    """Return a whole number of the query, or its default. Raises ApiError (400)."""
    value = call.request.query_params.get(name, str(default))
    number = natural(value)
    if number is None:
        raise bad_request(f"{name} is a whole number, not {value!r}")
    return number


class BodyCut:
    """Cuts each message to its shown part.

    `subjects` has the keys as they are now: bodies that are erased by now are not shown. `queue`: where it is looked
    at."""

    def __init__(self, subjects: Subjects, truncate: int, withheld: Withheld, queue: str) -> None:
        self.subjects = subjects
        self.truncate = truncate
        self.withheld = withheld
        self.queue = queue

    def __call__(self, published: Published) -> Published:
        opened = self.withheld.hide(self.subjects.decrypt(published), self.queue)
        return replace(opened, body=opened.body[: self.truncate])
