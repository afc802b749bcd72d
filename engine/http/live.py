"""Live figures: an answer of the API again and again, as server-sent events, while it changes.

    GET /api/live/overview                       what GET /api/overview answers
    GET /api/live/queues[/{vhost}]?page=1&...    a page of queues, with the parameters of a listing
    GET /api/live/queues/{vhost}/{queue}         one queue

    event: figures      data: the answer, as JSON
    event: problem      data: {"status", "error", "reason"}; the queue is gone, for example. The stream goes on
    event: end          the login ended, or the user changed: ask the API
    : alive             a comment, when nothing was sent for COMMENT_SECONDS

Rules of this file
- An answer is made once a tick for all who may see the same: for all administrators, and for each other user or token.
  The first one is made at once, with the errors and the permissions of the request itself.
- Each answer has its own ticks. So a stream whose answer takes long does not delay the others: they take turns in
  the loop's share for long work. After an answer that took long its next one comes later: it is made for at most a
  quarter of the time.
- A listener holds one answer, the newest. A slow client misses the others. A client that takes nothing is dropped
  (STALL_SECONDS of server.py).
- A user has at most MOST_OF_USER streams, a node MOST_STREAMS, and no more than half of the quota's connections.
- At each tick a listener must still be logged in, as a user who was not changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.call import ApiError, Call, api_error, bad_request, hung_up
from rewindmq.engine.http.logins import Logins, cookie_of
from rewindmq.engine.http.reference.operation import streamed
from rewindmq.engine.identity.grants import Grant
from rewindmq.schemas.json_values import compact_text

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

TICK_SECONDS: Final = 2.0
REST: Final = 3  # times as long as an answer took
MAKE_SECONDS: Final = 10.0  # an answer that takes longer is given up until the next tick
COMMENT_SECONDS: Final = 15.0  # proxies end a connection that is silent for some 60 seconds
MOST_STREAMS: Final = 100
MOST_OF_USER: Final = 20
HEADERS: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}

Handler = Callable[[Call], Awaitable[Response]]
Ready = Callable[[Call], Awaitable[None]]
Key = tuple[Handler, str, str, str | Grant]

logger = logging.getLogger(__name__)


class LiveListener:
    """A client of a stream, as it asked. `token`: of its browser's login; None: it came with a password.

    `ready`: makes this node fold what the answer needs."""

    def __init__(self, call: Call, key: Key, token: str | None, ready: Ready) -> None:
        self.call = call
        self.ready = ready
        self.key = key
        self.token = token
        self.ended = False
        self.news = asyncio.Event()
        self._frame = b""
        self._last = b""  # that was offered

    def offer(self, frame: bytes) -> None:
        """Give the client a frame to be sent, unless it is the last one again. One that was not sent yet is lost."""
        if frame != self._last:
            self._frame = self._last = frame
            self.news.set()

    def end(self, frame: bytes = b"") -> None:
        """End the stream, with this frame."""
        self.ended = True
        self._frame = frame
        self.news.set()

    def take(self) -> bytes:
        """Return the frame to be sent, once; empty if there is none."""
        frame, self._frame = self._frame, b""
        self.news.clear()
        return frame


class Live:
    """The streams of a node."""

    def __init__(self, broker: "Broker", logins: Logins) -> None:
        self._broker = broker
        self.logins = logins
        self._groups: dict[Key, dict[LiveListener, None]] = {}
        self._of_user: dict[str, int] = {}
        self._ticking: dict[Key, asyncio.Task[None]] = {}
        self._closed = False

    def of(self, handler: Handler, ready: Ready) -> Callable[[Call], Awaitable[ASGIApp]]:
        """Return a handler that answers with the stream of another's answers. `ready` is called before each further
        answer."""

        async def stream(call: Call) -> ASGIApp:
            self._require_room(call.user)
            frame = figures(await handler(call))
            if call.request.method == "HEAD":
                return Response(headers=HEADERS)
            self._require_room(call.user)  # others came meanwhile
            token = (
                None if "authorization" in call.request.headers else call.request.cookies.get(cookie_of(call.request))
            )
            audience = "" if "administrator" in call.tags else call.grant or call.user
            key = (handler, call.request.url.path, call.request.url.query, audience)
            listener = LiveListener(call, key, token, ready)
            listener.offer(frame)
            return Stream(self, listener)

        return streamed(handler, stream)

    def close(self) -> None:
        """End all streams: the node stops."""
        self._closed = True
        for group in self._groups.values():
            for listener in group:
                listener.end()
        for task in self._ticking.values():
            task.cancel()

    def _require_room(self, user: str) -> None:
        """Raise ApiError: 429 if the user has too many streams, 503 if the node has."""
        if self._of_user.get(user, 0) >= MOST_OF_USER:
            raise ApiError(429, "too_many_requests", f"a user has at most {MOST_OF_USER} live streams: close a page")
        share = min(
            (quota.share // 2 for quota in self._broker.host.quotas if quota.protocol == "http"), default=MOST_STREAMS
        )
        if self._closed or sum(self._of_user.values()) >= min(MOST_STREAMS, share):
            raise ApiError(503, "service_unavailable", "too many live streams: try again, or ask without /live")

    def join(self, listener: LiveListener) -> None:
        """Tell a listener what is new from now on."""
        self._groups.setdefault(listener.key, {})[listener] = None
        user = listener.call.user
        self._of_user[user] = self._of_user.get(user, 0) + 1
        if listener.key not in self._ticking:
            self._ticking[listener.key] = asyncio.ensure_future(self._tick(listener.key))

    def leave(self, listener: LiveListener) -> None:
        """Forget a listener."""
        group = self._groups[listener.key]
        del group[listener]
        if not group:
            del self._groups[listener.key]
            self._ticking.pop(listener.key).cancel()
        user = listener.call.user
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]

    async def _tick(self, key: Key) -> None:
        """Tell what is new while somebody listens; the last one who leaves ends it."""
        loop, spent = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(max(TICK_SECONDS, REST * spent))
            began = loop.time()
            await self._tell(key, self._groups[key])
            spent = loop.time() - began

    async def _tell(self, key: Key, group: dict[LiveListener, None]) -> None:
        for listener in list(group):
            if not self._may_listen(listener):
                listener.end(b"event: end\ndata: {}\n\n")
        first = next((listener for listener in group if not listener.ended), None)
        if first is None:
            return
        frame = await self._made(key[0], first)
        if frame is not None:
            for listener in group:
                if not listener.ended:
                    listener.offer(frame)

    async def _made(self, handler: Handler, listener: LiveListener) -> bytes | None:
        """Return the current answer for all listeners of this kind; None if it takes too long."""
        call = listener.call
        await self._broker.host.loop_share.turn()
        call.work = Work(self._broker.host.loop_share)
        try:
            async with asyncio.timeout(MAKE_SECONDS):
                await listener.ready(call)
                return figures(await handler(call))
        except TimeoutError:
            return None
        except ApiError as error:
            return problem(error)
        except AmqpError as error:
            return problem(api_error(error))
        except Exception:  # a defect of one answer must not end the others
            logger.exception("live figures of %s", call.request.url.path)
            return problem(ApiError(500, "internal_error", "see the broker's log"))

    def _may_listen(self, listener: LiveListener) -> bool:
        """Return True if the client is still logged in, and its user has not changed."""
        try:
            listener.call.require_account()
        except ApiError:
            return False
        return listener.token is None or self.logins.find(listener.token, used=False) is not None


class Stream:
    """A response that sends a listener its figures, until one of both ends."""

    def __init__(self, live: Live, listener: LiveListener) -> None:
        self._live = live
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listener = self._listener
        self._live.join(listener)
        gone = asyncio.ensure_future(hung_up(listener.call.request))
        gone.add_done_callback(lambda _: listener.end())
        try:
            head = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            while not listener.ended:
                await send({"type": "http.response.body", "body": await next_frame(listener), "more_body": True})
            await send({"type": "http.response.body", "body": listener.take(), "more_body": False})
        finally:
            gone.cancel()
            self._live.leave(listener)


async def next_frame(listener: LiveListener) -> bytes:
    """Return the next frame, or a comment if none comes for a while."""
    try:
        async with asyncio.timeout(COMMENT_SECONDS):
            await listener.news.wait()
    except TimeoutError:
        return b": alive\n\n"
    return listener.take()


def figures(answer: Response) -> bytes:
    """Return the frame with an answer. Raises ApiError (400) if the answer is long."""
    body = getattr(answer, "body", None)
    if not isinstance(body, bytes):
        raise bad_request("the answer is too long for a live stream: ask for fewer columns, or for a smaller page")
    return b"event: figures\ndata: " + body + b"\n\n"


def problem(error: ApiError) -> bytes:
    """Return the frame that says why there is no answer."""
    content = {"status": error.status, "error": error.error, "reason": error.reason}
    return b"event: problem\ndata: " + compact_text(content).encode() + b"\n\n"


def asks_for_stream(request: Request) -> bool:
    """Return True if a browser's EventSource asks, to which a script cannot add a header."""
    return request.headers.get("accept") == "text/event-stream"


def paged(handler: Handler) -> Handler:
    """Return the handler of a listing, for a request that asks for one page."""

    @wraps(handler)
    async def page(call: Call) -> Response:
        if "page" not in call.request.query_params:
            raise bad_request("live figures of a listing are those of one page: give page and page_size")
        return await handler(call)

    return page
