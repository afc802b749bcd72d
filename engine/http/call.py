"""One HTTP request as a handler sees it: the user, the names in the path, the body, and how an answer waits.

- Path segments are matched before they are decoded, so that `%2F` names the vhost "/" (see app.py).
- An answer that says "done" waits until the change is durable.
- Errors are RabbitMQ's: a status and {"error": ..., "reason": ...}.
- The header X-Reason says why, for the history. The actor of the call's events has it (`Call.actor`).
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.broker.access_control import UNMASKED, WITHOUT_CONTENTS
from rewindmq.engine.broker.access_log import Arrival
from rewindmq.engine.broker.callers import Caller
from rewindmq.engine.broker.declarations import locked
from rewindmq.engine.config import bracketed
from rewindmq.engine.errors import AccessRefused, AmqpError, ConnectionForced, NotAllowed, NotFound, ReadOnly
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.http.bodies import (
    MAX_BODY_BYTES,
    MAX_VALUES,
    OBJECTS_TO_TEXT,
    PARSED_HERE,
    BadBody,
    JsonBody,
    json_object,
)
from rewindmq.engine.http.reference.operation import operation_of
from rewindmq.engine.identity.grants import Grant, Identity
from rewindmq.engine.rewind.masks import MaskRule, Withheld
from rewindmq.engine.rewind.worker import ProcessEnded, Question, TooManyQuestions, WorkerPool
from rewindmq.engine.tls import TlsPeer
from rewindmq.engine.upgrades.since_version import SINCE_VERSION, require
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.json_arguments import arguments_from
from rewindmq.schemas.json_values import Json, compact_text
from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet, UserSet
from rewindmq.schemas.values import Actor, Argument

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.sessions import Session
    from rewindmq.projections.machine.data.queue import Queue
    from rewindmq.projections.rewind import At

NO_OBJECT = "User not authorised to access object"
DIGITS_MOST = 18
MOST_REASON_BYTES = 1_000
A_REASON = "a reason"  # in the words of a refusal
DURABLE_SECONDS = 30  # how long an answer waits for the log before it gives up (a full disk, Kafka away)
MOVE_SECONDS = 10  # the longest wait for a queue that moves to another partition; before that of `in_time`

T = TypeVar("T")


class ApiError(Exception):
    """An answer other than success: HTTP status, RabbitMQ's short `error` word, and the reason in a sentence."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason

    def __reduce__(self) -> "tuple[type[ApiError], tuple[int, str, str]]":
        return type(self), (self.status, self.error, self.reason)


class Missing(ApiError):
    """A thing does not exist. The node says so only after it has read to the end of the log (app.py)."""


def bad_request(reason: str) -> ApiError:
    """Return the error of a request that makes no sense (400)."""
    return ApiError(400, "bad_request", reason)


def missing(reason: str) -> ApiError:
    """Return the error of a request that names a thing that does not exist (400), in RabbitMQ's words."""
    return Missing(400, "bad_request", reason)


def not_found(reason: str = "Not Found", error: str = "Object Not Found") -> ApiError:
    """Return the error of a missing thing (404)."""
    return Missing(404, error, reason)


def not_authorised(reason: str) -> ApiError:
    """Return the error of a user who lacks a right (401, as RabbitMQ)."""
    return ApiError(401, "not_authorised", reason)


def api_error(refusal: AmqpError) -> ApiError:
    """Return the HTTP error of an AMQP refusal: 401 for a missing permission, 404 for a missing thing, 400 for all
    else.

    As in RabbitMQ, but the reason of a 401 says what was refused (RabbitMQ: "Access refused.")."""
    if isinstance(refusal, ReadOnly):
        return ApiError(403, "read_only", refusal.text)
    if isinstance(refusal, AccessRefused | NotAllowed):
        return not_authorised(refusal.text)
    if isinstance(refusal, NotFound):
        return not_found(refusal.text, "not_found")
    if isinstance(refusal, ConnectionForced):  # the node was lost and joins again
        return ApiError(503, "service_unavailable", refusal.text)
    return bad_request(refusal.text)


def arguments_in(content: dict[str, Json]) -> tuple[Argument, ...]:
    """Return the `arguments` in the body of a request. Raises ApiError (400)."""
    try:
        return arguments_from(content.get("arguments", {}))
    except Unacceptable as error:
        raise bad_request(str(error)) from None


def too_large(most_bytes: int) -> ApiError:
    """Return the error of a body that is too large (413)."""
    return ApiError(413, "too_large", f"Exceeded HTTP request body size limit ({most_bytes} bytes)")


def reply(content: object, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(compact_text(content), status, media_type="application/json")


def done(created: bool) -> Response:
    """Return the answer to a PUT: 201 for a new thing, 204 for one that existed."""
    return Response(status_code=201 if created else 204)


class Call:
    """One request. `who`, `user` and `tags` are the authenticated user's.

    `broker` runs in the same loop, so nothing else happens between two awaits. `body_workers`: processes that read
    large bodies."""

    def __init__(self, request: Request, broker: "Broker", body_workers: WorkerPool, who: Identity) -> None:
        self.request = request
        self.broker = broker
        self.body_workers = body_workers
        self.who = who
        self.tags = broker.access.control.tags(who)
        self.account = broker.topology.users.get(who.user)  # as it was when the user logged in
        self.reason = reason_of(request)
        self.work = Work(broker.host.loop_share)
        self.held_bytes = 0
        self._raw: bytes | None = None
        self._in_event = False  # an event has a field for the reason, so its actor has none

    @property
    def user(self) -> str:
        """The user's name."""
        return self.who.user

    @property
    def grant(self) -> Grant | None:
        """The grant of the user's token; None if the user has no token."""
        return self.who.grant

    def logged_in(self, who: Identity, account: UserSet | None) -> None:
        """Note the user that logged in, perhaps again for another attempt of the request. `account`: as it was then."""
        self.who, self.account = who, account
        self.tags = self.broker.access.control.tags(who)

    def require_account(self) -> None:
        """Raise ApiError (401) unless the user still has the password and the tags of the login, or the token is valid.

        A handler calls it after a wait."""
        if self.grant is not None:
            if self.broker.access.tokens.has_expired(self.grant):
                raise ApiError(401, "not_authorized", "Login failed: the token has expired")
            return
        then, now = self.account, self.broker.topology.users.get(self.user)
        if then is None or now is None or (then.password_hash, then.tags) != (now.password_hash, now.tags):
            raise ApiError(401, "not_authorized", "Login failed")

    # -- names in the path ---------------------------------------------------------------------------------------------
    def segment(self, name: str) -> str:
        """Return a segment of the path, decoded.

        All but a binding's `key` are names, at most 255 bytes long (S-062)."""
        try:
            found = unquote(str(self.request.path_params[name]), errors="strict")
        except UnicodeDecodeError:
            raise bad_request(f"the {name} in the path is not UTF-8") from None
        return found if name == "key" else short(name, found)

    @property
    def vhost(self) -> str:
        """The vhost in the path. Raises ApiError: 404 if it does not exist, 401 if the user may not enter it."""
        return self._vhost_among(self.visible_vhosts(), "User not authorised to access virtual host")

    @property
    def monitored_vhost(self) -> str:
        """The vhost in the path, for a user who may enter it or is a monitoring user."""
        return self._vhost_among(self.monitored_vhosts(), "User not authorised to access virtual host")

    @property
    def policymakers_vhost(self) -> str:
        """The vhost in the path, for a policymaker who may enter it."""
        self.require_policymaker()
        return self._vhost_among(self.visible_vhosts(), NO_OBJECT)

    def _vhost_among(self, vhosts: list[str], refusal: str) -> str:
        vhost = self.segment("vhost")
        if vhost not in self.broker.topology.vhosts:
            raise not_found() if self.request.method == "GET" else not_found("vhost_not_found", "not_found")
        if vhost not in vhosts:
            raise not_authorised(refusal)
        return vhost

    @property
    def exchange(self) -> str:
        """Name of the exchange in the path."""
        name = self.segment("exchange")
        return "" if name == "amq.default" else name

    def queue(self) -> "Queue":
        """Return the queue in the path. Raises ApiError (404)."""
        return self.queue_named(self.vhost, self.segment("queue"))

    def queue_named(self, vhost: str, name: str) -> "Queue":
        """Return a queue of the vhost in the path, by its name. Raises ApiError (404)."""
        queue = self.broker.queues.get(vhost, name)
        if queue is None or is_hidden(name):
            raise not_found()
        return queue

    def visible_vhosts(self) -> list[str]:
        """Return the vhosts that the user may enter; for an administrator all."""
        topology = self.broker.topology
        everywhere = "administrator" in self.tags
        may_enter = self.broker.access.control.may_enter
        return [vhost for vhost in sorted(topology.vhosts) if everywhere or may_enter(self, vhost)]

    @property
    def monitors(self) -> bool:
        """Return True if the user may see all vhosts."""
        return "administrator" in self.tags or "monitoring" in self.tags

    def monitored_vhosts(self) -> list[str]:
        """Return the vhosts that the user may see; for a monitoring user all."""
        return sorted(self.broker.topology.vhosts) if "monitoring" in self.tags else self.visible_vhosts()

    def require(self, *tags: str) -> None:
        """Raise ApiError unless the user has one of `tags`, or is an administrator."""
        if "administrator" in self.tags or any(tag in self.tags for tag in tags):
            return
        raise not_authorised("Not monitor user" if "monitoring" in tags else "Not administrator user")

    def require_policymaker(self) -> None:
        """Raise ApiError unless the user has the tag policymaker."""
        if "administrator" not in self.tags and "policymaker" not in self.tags:
            raise not_authorised(NO_OBJECT)

    def require_read(self, queue: "Queue") -> None:
        """Raise AccessRefused or ResourceLocked unless the user may consume from the queue.

        An exclusive queue is for the user who declared it."""
        if "administrator" in self.tags:
            return
        self.broker.access.control.check(self, queue.vhost, "read", "queue", queue.name)
        owner = self.broker.sessions.by_id.get(queue.owner) if queue.exclusive else None
        if queue.exclusive and (owner is None or owner.user != self.user):
            raise locked(queue)

    def withheld(self, vhost: str) -> Withheld:
        """Return what the user does not see of the messages of a vhost."""
        contents, topology = WITHOUT_CONTENTS in self.tags, self.broker.topology
        if contents or UNMASKED in self.tags:
            return Withheld(contents)
        policies: list[PolicySet | OperatorPolicySet] = [
            *topology.policies.values(),
            *topology.operator_policies.values(),
        ]
        rules = [MaskRule.of(policy) for policy in policies if policy.vhost == vhost]
        return Withheld(rules=tuple(rule for rule in rules if rule.masks))

    def asks(self, name: str) -> bool:
        """Return a boolean of the query string: `?if-unused=true`."""
        return self.request.query_params.get(name, "false") == "true"

    # -- the body ---------------------------------------------------------------------------------------------------
    async def raw_body(self, most_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Return the bytes of the body. Raises ApiError: 413 if it is too large, 503 if the broker has no memory for
        it."""
        if self._raw is not None:  # of a second attempt (partition/certainty.py)
            return self._raw
        raw = bytearray()
        length = self.request.headers.get("content-length", "0")
        if length.isdigit() and len(length) < 19 and int(length) > most_bytes:
            raise too_large(most_bytes)
        async for chunk in self.request.stream():
            raw += chunk
            if len(raw) > most_bytes:
                raise too_large(most_bytes)
            self.hold(len(chunk))
        self._raw = bytes(raw)
        self.require_account()  # a client may take two minutes to send it
        return self._raw

    async def body(self, *required: str, most_values: int = MAX_VALUES) -> dict[str, Json]:
        """Return the body as a JSON object. An empty body is an empty object."""
        raw = await self.raw_body()
        if len(raw) <= PARSED_HERE:
            try:
                content = json_object(raw, most_values)
            except BadBody as error:
                raise bad_request(str(error)) from None
        else:
            self.hold(OBJECTS_TO_TEXT * len(raw))
            content = await self.read_elsewhere(JsonBody(raw, most_values))
        missing = [key for key in required if key not in content]
        if missing:
            raise bad_request("[" + ",".join(f"{{key_missing,{key}}}" for key in missing) + "]")
        return content

    async def read_elsewhere(self, body: Question[T | BadBody]) -> T:
        """Return the answer of the process that reads large bodies. Raises ApiError."""
        try:
            found = await self.body_workers.ask(body, self.user)
        except ProcessEnded:
            raise ApiError(503, "service_unavailable", "the process that reads large bodies ended: try again") from None
        except TooManyQuestions:
            raise ApiError(
                429, "too_many_requests", "too many large bodies of this user are waiting: try again"
            ) from None
        if isinstance(found, BadBody):
            raise bad_request(str(found))
        return found

    # -- memory -------------------------------------------------------------------------------------------------------
    def hold(self, size: int) -> None:
        """Hold `size` bytes more until the answer is sent. Raises ApiError (503) if there is no room for them."""
        memory = self.broker.host.memory
        if not memory.room(size):
            raise ApiError(503, "service_unavailable", "the broker's memory for clients is full: try again")
        memory.take(MemoryKind.HTTP, size)
        self.held_bytes += size

    def release(self) -> None:
        """Release the memory of the request: its answer is sent, or given up."""
        self.broker.host.memory.give_back(MemoryKind.HTTP, self.held_bytes)
        self.held_bytes = 0

    # -- who asks -----------------------------------------------------------------------------------------------------
    def caller(self) -> Caller | None:
        """Return the client with its session in the history; None where none is logged."""
        product = self.request.headers.get("user-agent", "").partition("/")[0]
        return self.broker.access.callers.caller(
            self.user,
            arrival_of(self.request),
            product,
            tls_of(self.request),
            mechanism_of(self.request) + (" with a token" if self.grant is not None else ""),
        )

    def actor(self) -> Actor:
        """Return the actor of every event of this call, with its reason.

        Raises ApiError (403) and PreconditionFailed for the reason."""
        self.require_reason()
        caller = self.caller()
        return self._explained(Actor(self.user, 0) if caller is None else caller.session.actor)

    # -- why ----------------------------------------------------------------------------------------------------------
    def require_reason(self) -> None:
        """Raise ApiError (403) if this broker wants a reason for what the call does, and the call has none."""
        of = operation_of(self.request.scope["endpoint"])
        wanted = self.broker.config.require_reason
        if of is not None and of.act is not None and not self.reason and (of.act in wanted or "all" in wanted):
            how = "say why with --reason TEXT, or in the header X-Reason"
            raise ApiError(403, "reason_required", f"this broker wants a reason ({of.act}): {how}")

    def own_reason(self, given: str) -> str:
        """Return the reason for an event that has a field for it; `given`: in the body or the query."""
        self._in_event = True
        self.reason = self.reason or given
        return self.reason

    @property
    def machine_version(self) -> int:
        """The machine version that all partitions follow: after an upgrade they do so one by one."""
        return min(
            self.broker.topology.machine_version, *(each.machine.machine_version for each in self.broker.partitions)
        )

    @property
    def keeps_reasons(self) -> bool:
        """Return True if the history can store reasons yet."""
        return self.machine_version >= SINCE_VERSION[A_REASON]

    def _explained(self, actor: Actor) -> Actor:
        if not self.reason or self._in_event:
            return actor
        require(A_REASON, self.machine_version)
        return replace(actor, reason=self.reason)

    def past_read(self, vhost: str, queue: str, asked: str) -> None:
        """Log that the past is read: of a queue, or ("") of all. `asked`: what of it."""
        caller = self.caller()
        if caller is not None:
            partition = self.broker.queues.partition_for(vhost, queue) if queue else None
            actor = self._explained(caller.session.actor)
            self.broker.access.log.past_read(actor, partition, vhost, queue, way_of(self.request), asked)

    def moment_read(self, vhost: str, queue: str, incarnation: int | None, at: "At") -> None:
        """Log that a queue is read as it was at a moment. `incarnation`: the one that was asked for."""
        caller, asked = self.caller(), self.request.url.query
        if caller is not None:
            home = self.broker.queues.partition_for(vhost, queue)
            which, way, actor = (vhost, queue, incarnation), way_of(self.request), self._explained(caller.session.actor)
            self.broker.access.log.moment_read(actor, home, which, way, asked, at)

    # -- doing --------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def session(self, vhost: str) -> AsyncIterator["Session"]:
        """Yield a session of the HTTP user, as an AMQP client would have one, for the time of the request. In the
        history it is a channel of the client's session."""
        self.require_reason()
        caller, within, publishes = self.caller(), None, None
        if caller is not None:
            caller.calls += 1
            within = self._explained(caller.session.actor), caller.calls
            publishes = caller.session.publishes
        peer = arrival_of(self.request).address or "http"
        properties: dict[str, object] = {"product": "RewindMQ management API"}
        session = self.broker.sessions.open(
            self.user, vhost, peer, properties, within=within, grant=self.grant, publishes=publishes
        )
        try:
            yield session
        finally:
            self.broker.sessions.close(session)
            self.broker.turns.end()

    async def durable(self) -> None:
        """Wait until everything done so far is durable."""
        landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def land() -> None:
            if not landed.done():
                landed.set_result(None)

        self.broker.turns.when_durable(land)
        self.broker.turns.end()
        async with in_time():
            await landed


def reason_of(request: Request) -> str:
    """Return the reason in the header X-Reason, whose bytes are UTF-8 as in RabbitMQ; "" without one.

    Raises ApiError (400)."""
    sent = request.headers.get("x-reason", "").encode("latin-1")
    reason = sent.decode(errors="replace").strip()
    if len(sent) > MOST_REASON_BYTES:
        raise bad_request(f"X-Reason has at most {MOST_REASON_BYTES} bytes")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", reason):
        raise bad_request("X-Reason has a control character")
    return reason


def arrival_of(request: Request) -> Arrival:
    """Return the arrival of a request: its client's address, the listener and the balancer."""
    client, server = request.client, request.scope.get("server")
    address = f"{bracketed(client.host)}:{client.port}" if client else ""
    balancer = request.scope.get("state", {}).get("balancer")
    proxy = f"{bracketed(balancer[0])}:{balancer[1]}" if balancer else ""
    return Arrival("http", address, f"{bracketed(server[0])}:{server[1]}" if server else "", proxy)


def tls_of(request: Request) -> TlsPeer | None:
    """Return the TLS client of a request; None if it came without TLS."""
    state = request.scope.get("state", {})
    found: TlsPeer | None = state.get("tls")
    return found


def mechanism_of(request: Request) -> str:
    """Return the mechanism by which a client proves its identity: basic, bearer (a token) or login (of a browser)."""
    scheme = request.headers.get("authorization", "login").partition(" ")[0].lower()
    return scheme if scheme in ("bearer", "login") else "basic"


def way_of(request: Request) -> str:
    """Method and path of a request, with names as in app.py: PUT /api/policies/{vhost}/{name}."""
    route = request.scope.get("route")
    return f"{request.method} {getattr(route, 'path', request.url.path)}"


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Limit the wait for the log inside this context.

    After the time limit it raises ApiError (503). The change may still happen then."""
    try:
        async with asyncio.timeout(DURABLE_SECONDS):
            yield
    except TimeoutError:
        raise ApiError(
            503,
            "service_unavailable",
            f"not durable after {DURABLE_SECONDS} seconds: the log cannot be"
            " written (is the disk full, is Kafka away?); it is tried again. Or a queue is still on its way to another"
            " partition: ask again",
        ) from None


async def until_free(broker: "Broker", vhost: str, name: str) -> None:
    """Wait while a queue is on its way to another partition. After the time limit it raises ApiError (503)."""
    try:
        async with asyncio.timeout(MOVE_SECONDS):
            await broker.homes.wait_until_free(vhost, name)
    except TimeoutError:
        raise ApiError(
            503, "service_unavailable", f"queue '{name}' is still on its way to another partition: ask again"
        ) from None


async def unless_gone(call: Call, work: Coroutine[object, object, Response]) -> Response:
    """Return the answer that `work` makes; the work is cancelled when the client hangs up.

    The body has been read before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(hung_up(call.request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=499)  # no client reads it
    finally:
        for each in (task, gone):
            each.cancel()


async def hung_up(request: Request) -> None:
    """Return when the client closes its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def short(what: str, value: str) -> str:
    """Return a text that fits an AMQP short string. Raises ApiError (400)."""
    if len(value.encode()) > 255:
        raise bad_request(f"{what} is longer than 255 bytes")
    return value


def natural(text: str) -> int | None:
    """Return the number that a text is in decimal digits, from 0 to 10^18 - 1. None for every other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MOST else None


def integer(content: dict[str, Json], key: str, default: int) -> int:
    """Return a field of the body that is a whole number, also as text, as in RabbitMQ. Raises ApiError (400)."""
    value = content.get(key, default)
    if isinstance(value, str):
        sign = -1 if value.strip().startswith("-") else 1
        found = natural(value.strip().removeprefix("-"))
        if found is not None:
            return sign * found
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"not_integer: {key} {json.dumps(value, allow_nan=False)}")
    return value


def boolean(content: dict[str, Json], key: str, default: bool) -> bool:
    """Return a field of the body that is true or false, also as text. Raises ApiError (400)."""
    value = content.get(key, default)
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise bad_request(f"not_boolean: {key} {json.dumps(value, allow_nan=False)}")
    return value


def text(content: dict[str, Json], key: str, default: str) -> str:
    """Return a field of the body that is text. Raises ApiError (400)."""
    value = content.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"not_string: {key} {json.dumps(value, allow_nan=False)}")
    return value
