"""The login of a browser: POST /api/login with {"username", "password"} gives a cookie, DELETE /api/login ends it. A
token may take the place of the password; then the user is the token's."""

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.http.bodies import BadBody, json_object
from rewindmq.engine.http.call import ApiError, bad_request, too_large
from rewindmq.engine.http.logins import Logins, cookie_of
from rewindmq.engine.identity.grants import Identity

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

MOST_BYTES = 16_384  # a token has room
BODY_SECONDS = 10.0  # less than for other bodies: anybody may send one


async def name_and_password(request: Request) -> tuple[str, str]:
    """User and password in the body of a request. Raises ApiError (400, 408, 413)."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise too_large(MOST_BYTES)
    except TimeoutError:
        raise ApiError(408, "request_timeout", f"the login did not come within {BODY_SECONDS:.0f} seconds") from None
    try:
        content = json_object(body)
    except BadBody as error:
        raise bad_request(str(error)) from None
    name, password = content.get("username"), content.get("password")
    if not isinstance(name, str) or not isinstance(password, str):
        raise bad_request('give {"username": ..., "password": ...}')
    return name, password


def log_in_browser(broker: "Broker", request: Request, logins: Logins, who: Identity) -> Response:
    """Begin a login of a user whose password or token was right, and end the one that the browser had."""
    password_hash = broker.topology.users[who.user].password_hash if who.grant is None else ""
    cookie = cookie_of(request)
    old = request.cookies.get(cookie)
    if old is not None:
        logins.close(old)
    response = Response(status_code=204, headers={"cache-control": "no-store"})
    token = logins.open(who.user, password_hash, who.grant)
    secure = request.url.scheme == "https"
    response.set_cookie(cookie, token, path="/", secure=secure, httponly=True, samesite="strict")
    return response


def log_out_browser(request: Request, logins: Logins) -> Response:
    """Answer DELETE /api/login, also without a login."""
    cookie = cookie_of(request)
    token = request.cookies.get(cookie)
    if token is not None:
        logins.close(token)
    response = Response(status_code=204)
    response.delete_cookie(cookie, path="/", httponly=True, samesite="strict")
    return response
