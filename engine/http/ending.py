"""Requests that end before their answer, which are no defects: the broker stops, or the client goes away."""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.http.call import reply

STOPPING = "the broker is stopping"


class Ending:
    """What a stopping broker gives up is answered with 503, unless an answer has begun. Nobody is there to read what a
    client is answered that went away while it was sending."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not begun:
                response: Response = reply({"error": "service_unavailable", "reason": STOPPING}, 503)
                await response(scope, receive, send)
