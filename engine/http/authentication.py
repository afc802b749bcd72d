"""Says which of the broker's users asks: HTTP Basic, a token (`Authorization: Bearer`, or as the password of Basic), or
the cookie of a browser that logged in (logins.py).

As in RabbitMQ, the API is for users with one of the management tags. Users of `--loopback-users` (guest) may log in
from this machine only.
"""

import base64
from contextlib import AbstractContextManager, nullcontext
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.requests import Request

from rewindmq.engine.errors import AmqpError, LoginsBraked
from rewindmq.engine.host.admission import AdmittedConnection
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.logins import Login, Logins, cookie_of
from rewindmq.engine.identity.grants import Identity, TokenRefused

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

SAFE = ("GET", "HEAD", "OPTIONS")
MANAGEMENT_TAGS = ("administrator", "monitoring", "policymaker", "management")


class NotLoggedIn(ApiError):
    """A request says no user, or its login ended (401)."""

    def __init__(self, reason: str = "Login failed", error: str = "not_authorized") -> None:
        super().__init__(401, error, reason)


class LoginFailed(NotLoggedIn):
    """A user and a password, or a token, came, and were refused (401). `why`: for the history."""

    def __init__(
        self, user: str, reason: str = "Login failed", error: str = "not_authorized", why: str | None = None
    ) -> None:
        super().__init__(reason, error)
        self.user = user
        self.why = reason if why is None else why


class LoginHeldBack(ApiError):
    """A password was not looked at, for too many from its address were wrong (429)."""

    def __init__(self, user: str, refusal: LoginsBraked) -> None:
        super().__init__(429, "too_many_requests", refusal.text)
        self.user = user
        self.why = refusal.text
        self.seconds = refusal.seconds


async def authenticate(broker: "Broker", request: Request, logins: Logins) -> Identity:
    """Return the user who asks, with one of the management tags. Raises NotLoggedIn, in RabbitMQ's words."""
    token = request.cookies.get(cookie_of(request))
    if token is None or "authorization" in request.headers:
        bearer = bearer_token(request)
        if bearer is not None and broker.access.tokens.settings is not None:
            return await bear(broker, request, bearer)
        return await log_in(broker, request, *credentials(request))
    login = logins.find(token)
    if login is not None and login.grant is not None and broker.access.tokens.has_expired(login.grant):
        raise NotLoggedIn("The token expired: log in again")  # each request of a page hears it, so the login is kept
    if login is None or not still_valid(broker, login):
        logins.close(token)
        raise NotLoggedIn("The login ended: log in again")
    if request.method not in SAFE and not from_page(request):
        raise ApiError(403, "forbidden", "a request that a cookie allows says X-Requested-With: page")
    return let_in(broker, request, Identity(login.user, login.grant))


def still_valid(broker: "Broker", login: Login) -> bool:
    """Return True if the user still has the password of the login, or if its token has not expired."""
    if login.grant is not None:
        return not broker.access.tokens.has_expired(login.grant)
    account = broker.topology.users.get(login.user)
    return account is not None and account.password_hash == login.password_hash


async def log_in(broker: "Broker", request: Request, name: str, password: str) -> Identity:
    """Return the user with this password, or of the token in its place. Raises LoginFailed, LoginHeldBack."""
    require_near(broker, request, name)
    host = "" if request.client is None else request.client.host
    try:
        with presenting(request):
            who = await broker.access.control.authenticate(name, password, host)
    except LoginsBraked as error:
        raise LoginHeldBack(name, error) from None
    except TokenRefused as error:
        raise refused_token(error, name) from None
    except AmqpError:
        raise LoginFailed(name) from None
    return let_in(broker, request, who)


async def bear(broker: "Broker", request: Request, token: str) -> Identity:
    """Return the user of a token. Raises LoginFailed."""
    try:
        with presenting(request):
            who = await broker.access.control.bear(token)
    except TokenRefused as error:
        raise refused_token(error) from None
    return let_in(broker, request, who)


def presenting(request: Request) -> AbstractContextManager[None]:
    """Keep the place of the request's connection in the quota while its password or token is under verification."""
    admitted: AdmittedConnection | None = request.scope.get("state", {}).get("admitted")
    return nullcontext() if admitted is None else admitted.presenting()


def refused_token(refusal: TokenRefused, name: str = "") -> LoginFailed:
    """Return the error of a token. Its bearer may read the reason: it is in the token, which the bearer has."""
    return LoginFailed(refusal.user or name, f"Login failed: {refusal.text}", why=refusal.text)


def let_in(broker: "Broker", request: Request, who: Identity) -> Identity:
    """Return the user, if it may come from there and has a management tag. Raises LoginFailed."""
    require_near(broker, request, who.user)
    require_management(who.user, broker.access.control.tags(who))
    return who


def bearer_token(request: Request) -> str | None:
    """Return the token of `Authorization: Bearer`; None if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def require_near(broker: "Broker", request: Request, name: str) -> None:
    """Raise LoginFailed for a user of `--loopback-users` on another machine."""
    if name in broker.config.loopback_users and not from_loopback(request):
        raise LoginFailed(name, "User can only log in via localhost", "not_authorised")


def require_management(name: str, tags: tuple[str, ...]) -> None:
    """Raise LoginFailed for a user without one of the management tags."""
    if not any(tag in tags for tag in MANAGEMENT_TAGS):
        raise LoginFailed(name, "Not management user", "not_authorised")


def credentials(request: Request) -> tuple[str, str]:
    """User and password of a request. Raises NotLoggedIn."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:  # no base64, no ASCII, no UTF-8
            colon = ""
        if colon:
            return name, password
    raise NotLoggedIn


def from_page(request: Request) -> bool:
    """Return True if the desk's own script asks. A page of another site cannot set this header without a preflight."""
    return request.headers.get("x-requested-with") == "page"


def from_loopback(request: Request) -> bool:
    """Return True if a request came from this machine.

    A request through a balancer did not: a loopback address that the balancer reports is on the balancer's machine."""
    if request.scope.get("state", {}).get("balancer") is not None:
        return False
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
