"""Keeps requests that end before their answer out of the error log.

The broker stops, the client goes away, or the client does not speak HTTP: none of these is a defect.
"""

import asyncio

from h11 import LocalProtocolError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewindmq.engine.http.call import reply

STOPPING = "the broker is stopping"


class Ending:
    """Ends requests of a stopping broker and of clients that went away.

    A request that a stopping broker gives up is answered with 503, unless an answer has begun. A client that went away
    while it was sending gets no answer. A client whose body was no HTTP has got 400 from the server, and gets no other
    answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = refused = False

        async def watched(message: Message) -> None:
            nonlocal begun, refused
            begun = True
            if refused:
                return
            try:
                await send(message)
            except LocalProtocolError:
                if message["type"] != "http.response.start":
                    raise
                refused = True

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not begun:
                response: Response = reply({"error": "service_unavailable", "reason": STOPPING}, 503)
                await response(scope, receive, send)
