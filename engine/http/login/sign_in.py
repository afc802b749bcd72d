"""The sign-in of a browser at the identity provider (engine/identity/sign_in.py), in the desk.

    GET /sign-in?here=URL    leads to the provider; `here`: the address of the desk, as the browser has it
    GET /sign-in/callback    the provider leads back here; then the desk is logged in, or says why it is not
    GET /api/login           which provider there is, and why the last sign-in of this browser failed

The ticket, and then the reason, are in a cookie that comes along when the provider leads back (SameSite=Lax). No script
can read it. The cookie of the login is the same as with a password.
"""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rewindmq.engine.http.browsers import is_same
from rewindmq.engine.http.call import ApiError, reply
from rewindmq.engine.http.logins import cookie_of
from rewindmq.engine.http.shapes.node import WaysToLogInView
from rewindmq.engine.identity.grants import TokenRefused
from rewindmq.engine.identity.sign_in import SECONDS, SignIn, SignInFailed

PATH, CALLBACK = "/sign-in", "/sign-in/callback"
MOST_ADDRESS = 1_000
MOST_REASON = 500
# The query of these answers has a code, or the state of a sign-in.
PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer"}


async def begin(sign_in: SignIn, request: Request) -> Response:
    """Answer GET /sign-in."""
    try:
        url, ticket = await sign_in.begin(here(request) + CALLBACK[1:])
    except SignInFailed as error:
        return failed(sign_in, request, str(error), "./")
    response = RedirectResponse(url, 303, PRIVATE)
    keep(request, response, ticket)
    return response


async def token_of(sign_in: SignIn, request: Request) -> str:
    """Return the access token of the person whom the provider sent back.

    Raises SignInFailed; ApiError: it is refused."""
    query = request.query_params
    sent = {
        "state": query.get("state"),
        "code": query.get("code"),
        "iss": query.get("iss"),
        "error": query.get("error"),
        "error_description": query.get("error_description"),
    }
    answer = {name: value for name, value in sent.items() if value is not None}
    try:
        return await sign_in.finish(request.cookies.get(ticket_cookie(request)), answer)
    except TokenRefused as error:
        raise ApiError(401, "not_authorized", error.text) from None


def logged_in(request: Request, response: Response) -> Response:
    """Lead back to the desk with the cookie of the login, which this response has."""
    response.status_code = 303
    response.headers.update(PRIVATE | {"location": "../"})
    response.delete_cookie(ticket_cookie(request), path="/", httponly=True, samesite="lax")
    return response


def failed(sign_in: SignIn, request: Request, reason: str, back: str = "../") -> Response:
    """Lead back to the desk, which shows the reason."""
    response = RedirectResponse(back, 303, PRIVATE)
    keep(request, response, sign_in.sealed(reason[:MOST_REASON]))
    return response


def show(sign_in: SignIn, request: Request) -> Response:
    """Answer GET /api/login. The reason is shown once."""
    cookie = ticket_cookie(request)
    refused = sign_in.unsealed(request.cookies.get(cookie, ""))
    response = reply(WaysToLogInView(provider=sign_in.provider, refused=refused))
    response.headers["cache-control"] = "no-store"
    if refused:
        response.delete_cookie(cookie, path="/", httponly=True, samesite="lax")
    return response


def keep(request: Request, response: Response, value: str) -> None:
    """Give the browser the ticket, or the reason."""
    secure = request.url.scheme == "https"
    name = ticket_cookie(request)
    response.set_cookie(name, value, SECONDS, path="/", secure=secure, httponly=True, samesite="lax")


def ticket_cookie(request: Request) -> str:
    """Return the name of the cookie."""
    return f"{cookie_of(request)}_ticket"


def here(request: Request) -> str:
    """Return the address of the desk, with a slash at its end. SignInFailed: it is that of another site.

    The browser says it: TLS, and a path before ours, may be those of a proxy."""
    given = request.query_params.get("here") or str(request.base_url)
    try:
        parts = urlsplit(given)
        fine = parts.scheme in ("http", "https") and not (parts.query or parts.fragment or "@" in parts.netloc)
    except ValueError:
        fine = False
    host = request.headers.get("host", "")
    if not fine or len(given) > MOST_ADDRESS or not is_same(f"{parts.scheme}://{parts.netloc}", host):
        raise SignInFailed("the sign-in did not begin at the desk: begin again")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rpartition('/')[0]}/"
