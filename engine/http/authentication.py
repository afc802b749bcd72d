"""Says which of the broker's users asks: HTTP Basic, or the cookie of a browser that logged in (logins.py).

As in RabbitMQ, the API is for users with one of the management tags. Users of `--loopback-users` (guest) may log in
from this machine only.
"""

import base64
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.requests import Request

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.logins import Logins, cookie_of

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

SAFE = ("GET", "HEAD", "OPTIONS")
MANAGEMENT_TAGS = ("administrator", "monitoring", "policymaker", "management")


class NotLoggedIn(ApiError):
    """A request says no user, or its login ended (401)."""

    def __init__(self, reason: str = "Login failed", error: str = "not_authorized") -> None:
        super().__init__(401, error, reason)


class LoginFailed(NotLoggedIn):
    """A user and a password came, and were refused (401)."""

    def __init__(self, user: str, reason: str = "Login failed", error: str = "not_authorized") -> None:
        super().__init__(reason, error)
        self.user = user


async def authenticate(broker: "Broker", request: Request, logins: Logins) -> tuple[str, tuple[str, ...]]:
    """The user's name and tags. Raises NotLoggedIn, in RabbitMQ's words."""
    token = request.cookies.get(cookie_of(request))
    if token is None or "authorization" in request.headers:
        return await log_in(broker, request, *credentials(request))
    login = logins.find(token)
    account = None if login is None else broker.topology.users.get(login.user)
    if login is None or account is None or account.password_hash != login.password_hash:
        logins.close(token)
        raise NotLoggedIn("The login ended: log in again")
    if request.method not in SAFE and not from_page(request):
        raise ApiError(403, "forbidden", "a request that a cookie allows says X-Requested-With: page")
    require_near(broker, request, login.user)
    require_management(login.user, account.tags)
    return login.user, account.tags


async def log_in(broker: "Broker", request: Request, name: str, password: str) -> tuple[str, tuple[str, ...]]:
    """The name and the tags of a user with this password. Raises LoginFailed."""
    require_near(broker, request, name)
    try:
        await broker.access.authenticate(name, password)
    except AmqpError:
        raise LoginFailed(name) from None
    tags = broker.topology.users[name].tags
    require_management(name, tags)
    return name, tags


def require_near(broker: "Broker", request: Request, name: str) -> None:
    """Raises LoginFailed for a user of `--loopback-users` on another machine."""
    if name in broker.config.loopback_users and not from_loopback(request):
        raise LoginFailed(name, "User can only log in via localhost", "not_authorised")


def require_management(name: str, tags: tuple[str, ...]) -> None:
    """Raises LoginFailed for a user without one of the management tags."""
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
    """Whether the desk's own script asks. A page of another site cannot set this header (it has to ask before)."""
    return request.headers.get("x-requested-with") == "page"


def from_loopback(request: Request) -> bool:
    """Whether a request came from this machine, and not through a balancer: its loopback is its own machine's."""
    if request.scope.get("state", {}).get("balancer") is not None:
        return False
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
