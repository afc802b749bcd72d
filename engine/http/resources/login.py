"""The login of a browser: POST /api/login with {"username", "password"} gives a cookie, DELETE /api/login ends it."""

import json
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.http.authentication import LoginFailed, log_in
from rewindmq.engine.http.call import bad_request, too_large
from rewindmq.engine.http.logins import COOKIE, Logins

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

MOST_BYTES = 4_096


async def name_and_password(request: Request) -> tuple[str, str]:
    """User and password in the body of a request. Raises ApiError (400, 413)."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise too_large(MOST_BYTES)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    found = (content.get("username"), content.get("password")) if isinstance(content, dict) else (None, None)
    name, password = found
    if not isinstance(name, str) or not isinstance(password, str):
        raise bad_request('give {"username": ..., "password": ...}')
    return name, password


async def log_in_browser(broker: "Broker", request: Request, logins: Logins, name: str, password: str) -> Response:
    """Answers POST /api/login. Raises LoginFailed."""
    await log_in(broker, request, name, password)
    account = broker.topology.users.get(name)
    if account is None:  # it was deleted meanwhile
        raise LoginFailed(name)
    old = request.cookies.get(COOKIE)
    if old is not None:
        logins.close(old)
    response = Response(status_code=204, headers={"cache-control": "no-store"})
    token = logins.open(name, account.password_hash)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, path="/", secure=secure, httponly=True, samesite="strict")
    return response


async def log_out_browser(request: Request, logins: Logins) -> Response:
    """Answers DELETE /api/login, also if there is no login."""
    token = request.cookies.get(COOKIE)
    if token is not None:
        logins.close(token)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response
