"""Brings messages back: POST /api/queues/{vhost}/{queue}/restore

    {"time": "..."} or {"offset": N} or {"undo": "purge" | "delete" | "remove"}      the moment; a time may be mark:NAME
    "only": ["purged", "expired", ...] or "all"    their fate since then; default: the fate that is undone, and at a
                                                   moment all fates but that a consumer took the message
    "messages": [ids]                              only these; without a moment: as they were published
    "records": {"id": "..."}                       with messages: the SHA-256 of some of these records in the history in
                                                   which they were found. A broker of another history answers 409
    "to": "queue"                                  into another queue of the vhost
    "name": "..."                                  each message comes back once under a name
    "rate": 500                                    messages a second at most; default: no limit
    "dry_run": true                                only show what would come back
    "incarnation": queue id                        only of this one of the queues that had the name

A user who may read the queue and write to the target may bring back messages of the queue that is there now.
Administrators may also bring back messages of an earlier queue of the name, or of a queue that is gone.
The answer counts the messages that came back (`restored`), that had come back already under this name (`duplicates`),
and that the target's limits refused (`refused`).
A queue that is gone is declared as it was (`declared`) and gets the `bindings` that it had then. The same request after
a crash makes the bindings that are missing. `bindings_lost` are those that can't be made again (their exchange is gone,
the user lacks the right), each with the reason.
A restoration goes on to its end when its client hangs up. It is cancelled by

    DELETE /api/queues/{vhost}/{queue}/restore[?name=...]

by the user that asked for it, or an administrator. What is back stays (`cancelled` in both answers), and the same
restoration asked again brings the rest.

Messages that no queue took are brought back, for administrators, by POST /api/vhosts/{vhost}/restore-unrouted

    {"exchange": "orders", "since": "...", "until": "...", "routing_key": "...", "dry_run": true}

They are routed again by the bindings of today. `routes` says by routing key into which queues.
"""

from starlette.responses import Response

from rewindmq.engine.http.bodies import MAX_VALUES
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    bad_request,
    boolean,
    integer,
    natural,
    not_found,
    reply,
    text,
    until_free,
)
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.resources.past import history_in, readable_incarnation
from rewindmq.engine.http.shapes.history import (
    CancelledRestorationView,
    CancelledView,
    ReroutedView,
    RestoredView,
    RestoreWish,
    RouteNowView,
    UnroutedWish,
)
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.rewind.bindings_at import split
from rewindmq.engine.rewind.lost_messages import LostMessages, reroute
from rewindmq.engine.rewind.partition_visits import moment_in
from rewindmq.engine.rewind.restorations import Restoration
from rewindmq.engine.rewind.restore_plan import (
    FATES,
    LOST,
    THERE,
    UNDONE,
    UNDONE_FATES,
    NoPlan,
    RestoreRequest,
    name_of,
)
from rewindmq.engine.rewind.worker import ProcessEnded, TooManyQuestions
from rewindmq.projections.rewind import At, RewindError, parse_time
from rewindmq.schemas.json_values import Json

SAID = ("time", "offset", "undo", "only", "to", "name", "rate", "dry_run")  # in the event that the past was read
KEYS = {*SAID, "messages", "records", "incarnation", "partition"}
MAX_MESSAGES = 100_000  # ids in one request
MOST_ROUTES = 1_000  # in one answer


@operation(
    "Brings messages back", folds=Folds.NAMED, act="restore", body=RestoreWish, answer=RestoredView, errors=(409,)
)
async def post(call: Call) -> Response:
    """Answer POST /api/queues/{vhost}/{queue}/restore."""
    vhost, queue = call.vhost, call.segment("queue")
    await readable_incarnation(call, vhost, queue, None)
    content = await call.body(most_values=MAX_MESSAGES + MAX_VALUES)
    target = text(content, "to", queue)
    dry_run = boolean(content, "dry_run", False)
    if not dry_run:
        call.require_reason()
    rate = rate_of(content)
    wish = await request_of(call, vhost, queue, target, content)
    if call.broker.turns.blocked is not None and not dry_run:
        raise bad_request(f"publishing is blocked: {call.broker.turns.blocked}")
    asked = [f"{key}={content[key]}" for key in SAID if key in content]
    call.past_read(vhost, queue, "&".join(asked))
    await call.durable()  # the reader sees what is written
    try:
        plan = await call.broker.history.past.ask(wish, call.user)
        if isinstance(plan, NoPlan):
            if plan.away:
                raise ApiError(503, "service_unavailable", plan.reason)
            if plan.foreign:
                raise ApiError(409, "conflict", plan.reason)
            raise not_found(plan.reason, "not_found") if plan.missing else bad_request(plan.reason)
        name = text(content, "name", name_of(plan))
        if dry_run:
            await call.broker.queues.partition_for(vhost, target).enter()
            bindings = call.broker.history.restorations.to_bind(vhost, plan, target, name)
            return reply(RestoredView.planned(plan, target, name, *split(call.broker.topology, bindings), dry_run=True))
        restoration = Restoration(call.user, plan, target, name)
        await until_free(call.broker, vhost, target)
        async with call.session(vhost) as session:
            with call.broker.history.restorations.begun(restoration):
                done = await call.broker.history.restorations.restore(
                    session, call.broker.history.past, wish.history, restoration, rate
                )
    except (ProcessEnded, NoAnswer) as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    except TooManyQuestions as error:
        raise ApiError(429, "too_many_requests", str(error)) from None
    return reply(
        RestoredView.planned(
            plan,
            target,
            name,
            done.bound,
            done.lost,
            dry_run=False,
            restored=done.restored,
            duplicates=done.duplicates,
            refused=done.refused,
            declared=done.declared,
            cancelled=done.cancelled,
        )
    )


@operation(
    "Cancels a restoration; what is back stays",
    folds=Folds.NONE,
    query=(Query("name", str, "Only the one with this name"),),
    answer=CancelledView,
)
async def cancel(call: Call) -> Response:
    """Answer DELETE /api/queues/{vhost}/{queue}/restore."""
    vhost, queue = call.vhost, call.segment("queue")
    name = call.request.query_params.get("name")
    wanted = [each for each in call.broker.history.restorations.of(vhost, queue) if name is None or each.name == name]
    if "administrator" not in call.tags:
        wanted = [each for each in wanted if each.user == call.user]
    if not wanted:
        raise not_found(f"no restoration of queue '{queue}' is under way here that you may cancel", "not_found")
    for each in wanted:
        each.cancel()
    items = []
    for each in wanted:
        await each.ended.wait()
        messages = len(each.plan.messages)
        call.past_read(vhost, queue, f"cancelled&name={each.name}&to={each.target}&back={each.back}&of={messages}")
        items.append(CancelledRestorationView.of(each, to=each.target, messages=messages))
    await call.durable()
    return reply(CancelledView(cancelled=items))


@operation(
    "Routes messages again that no queue took",
    folds=Folds.NAMED,
    act="restore",
    who=ADMINISTRATOR,
    body=UnroutedWish,
    answer=ReroutedView,
)
async def unrouted(call: Call) -> Response:
    """Answer POST /api/vhosts/{vhost}/restore-unrouted."""
    call.require()
    vhost, broker = call.vhost, call.broker
    content = await call.body("exchange", "since")
    if unknown := content.keys() - {"exchange", "since", "until", "routing_key", "dry_run"}:
        raise bad_request(f"unknown key {min(unknown)!r}")
    dry_run = boolean(content, "dry_run", False)
    if not dry_run:
        call.require_reason()
        if broker.turns.blocked is not None:
            raise bad_request(f"publishing is blocked: {broker.turns.blocked}")
    exchange, history = text(content, "exchange", ""), history_in(call, vhost, None)
    if (vhost, exchange) not in broker.topology.exchanges:
        raise not_found(f"no exchange '{exchange}' in vhost '{vhost}'", "not_found")
    try:
        since_ms, until_ms = (parse_time(text(content, name, "-0s")) for name in ("since", "until"))
    except RewindError as error:
        raise bad_request(str(error)) from None
    routing_key = text(content, "routing_key", "") if "routing_key" in content else None
    question = LostMessages(history, vhost, exchange, routing_key, since_ms, until_ms)
    call.past_read(vhost, "", "&".join(["unrouted", *(f"{key}={value}" for key, value in content.items())]))
    await call.durable()  # the reader sees what is written
    past, restorations = broker.history.past, broker.history.restorations
    try:
        plans = await past.ask(question, call.user)
        if isinstance(plans, NoPlan):
            raise ApiError(503, "service_unavailable", plans.reason) if plans.away else bad_request(plans.reason)
        if dry_run:
            done = await reroute(restorations, broker.router, past, history, plans, call.user, None)
        else:
            async with call.session(vhost) as session:
                done = await reroute(restorations, broker.router, past, history, plans, call.user, session)
    except (ProcessEnded, NoAnswer) as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    except TooManyQuestions as error:
        raise ApiError(429, "too_many_requests", str(error)) from None
    came, routes = done.came, done.routes.most_common(MOST_ROUTES)
    counts = (
        {} if dry_run else {"restored": came["restored"], "duplicates": came["duplicate"], "refused": came["refused"]}
    )
    return reply(
        ReroutedView(
            exchange=exchange,
            messages=done.routes.total(),
            routes=[RouteNowView(routing_key=key, queues=list(to), messages=count) for (key, to), count in routes],
            dry_run=dry_run,
            nowhere=sum(count for (_, queues), count in done.routes.items() if not queues),
            **counts,
        )
    )


async def request_of(call: Call, vhost: str, queue: str, target: str, content: dict[str, Json]) -> RestoreRequest:
    """Return the restoration that a body asks for. Raises ApiError (400)."""
    given = [key for key in ("time", "offset", "undo") if key in content]
    if len(given) > 1 or not (given or content.get("messages")):
        raise bad_request("give one of time, offset and undo, or messages")
    unknown = content.keys() - KEYS
    if unknown:
        raise bad_request(f"unknown key {min(unknown)!r}")
    undo = text(content, "undo", "")
    if undo and undo not in UNDONE:
        raise bad_request(f"undo is one of {', '.join(UNDONE)}, not {undo!r}")
    fates = fates_of(content["only"]) if "only" in content else UNDONE_FATES.get(undo, LOST)
    if target == queue and any(fate in THERE for fate in fates):
        fates = tuple(fate for fate in fates if fate not in THERE)  # else it would be in the queue twice
    at = moment_of(call, vhost, queue, content)
    asked = integer(content, "incarnation", 0) if "incarnation" in content else None
    incarnation = await readable_incarnation(call, vhost, queue, asked)
    history, partition = history_in(call, vhost, queue), text(content, "partition", "") or None
    ids, records = ids_of(content), records_of(content)
    return RestoreRequest(
        history,
        vhost,
        queue,
        at=at,
        undo=undo,
        fates=fates,
        ids=ids,
        incarnation=incarnation,
        partition=partition,
        records=records,
    )


def moment_of(call: Call, vhost: str, queue: str, content: dict[str, Json]) -> At | None:
    """Return the moment that a body names; None if it names messages only. Raises ApiError (400)."""
    offset = content.get("offset")
    if "time" in content:
        try:
            wanted = text(content, "time", "")
            return moment_in(wanted, vhost, queue, call.broker.topology, len(call.broker.partitions))
        except RewindError as error:
            raise bad_request(str(error)) from None
    if offset is None:
        return None
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise bad_request(f"offset is a whole number, not {offset!r}")
    return At(offset=offset, partition=text(content, "partition", "") or None)


def rate_of(content: dict[str, Json]) -> int | None:
    """Return the messages a second of a body; None: no limit. Raises ApiError (400)."""
    if "rate" not in content:
        return None
    rate = integer(content, "rate", 0)
    if rate < 1:
        raise bad_request(f"rate is at least 1 message a second, not {rate}")
    return rate


def fates_of(only: Json) -> tuple[str, ...]:
    """Return the fates that `only` names. Raises ApiError (400)."""
    if only == "all":
        return FATES
    if not isinstance(only, list) or not only or any(fate not in FATES for fate in only):
        raise bad_request(f'only is "all", or a list of {", ".join(FATES)}')
    return tuple(str(fate) for fate in only)


def ids_of(content: dict[str, Json]) -> frozenset[int]:
    """Return the message ids of a body. Raises ApiError (400)."""
    ids = content.get("messages", [])
    if not isinstance(ids, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in ids):
        raise bad_request("messages is a list of message ids")
    if len(ids) > MAX_MESSAGES:
        raise bad_request(f"at most {MAX_MESSAGES} messages at a time")
    return frozenset(each for each in ids if isinstance(each, int))


def records_of(content: dict[str, Json]) -> tuple[tuple[int, str], ...]:
    """Message ids of a body, with the SHA-256 of their records. Raises ApiError (400)."""
    records = content.get("records", {})
    if not isinstance(records, dict) or any(natural(each) is None for each in records):
        raise bad_request("records is an object: SHA-256 of a record by message id")
    return tuple((int(each), str(digest)) for each, digest in records.items())
