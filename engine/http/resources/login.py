"""The login of a browser: POST /api/login with {"username", "password"} gives a cookie, DELETE /api/login ends it."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from rewindmq.engine.http.bodies import BadBody, json_object
from rewindmq.engine.http.call import bad_request, too_large
from rewindmq.engine.http.logins import Logins, cookie_of

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
        content = json_object(body)
    except BadBody as error:
        raise bad_request(str(error)) from None
    name, password = content.get("username"), content.get("password")
    if not isinstance(name, str) or not isinstance(password, str):
        raise bad_request('give {"username": ..., "password": ...}')
    return name, password


def log_in_browser(broker: "Broker", request: Request, logins: Logins, name: str) -> Response:
    """Begins a login of a user whose password was right, and ends the one that the browser had."""
    account = broker.topology.users[name]
    cookie = cookie_of(request)
    old = request.cookies.get(cookie)
    if old is not None:
        logins.close(old)
    response = Response(status_code=204, headers={"cache-control": "no-store"})
    token = logins.open(name, account.password_hash)
    secure = request.url.scheme == "https"
    response.set_cookie(cookie, token, path="/", secure=secure, httponly=True, samesite="strict")
    return response


def log_out_browser(request: Request, logins: Logins) -> Response:
    """Answers DELETE /api/login, also if there is no login."""
    cookie = cookie_of(request)
    token = request.cookies.get(cookie)
    if token is not None:
        logins.close(token)
    response = Response(status_code=204)
    response.delete_cookie(cookie, path="/", httponly=True, samesite="strict")
    return response
