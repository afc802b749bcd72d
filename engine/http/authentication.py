"""HTTP Basic authentication against the broker's users.

As in RabbitMQ, the API is for users with one of the management tags. Users of `--loopback-users` (guest) may log in
from this machine only.
"""

import base64
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.requests import Request

from rewindmq.engine.errors import AmqpError
from rewindmq.engine.http.call import ApiError

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

MANAGEMENT_TAGS = ("administrator", "monitoring", "policymaker", "management")


class LoginFailed(ApiError):
    """A user and a password came, and were refused (401)."""

    def __init__(self, user: str, error: str, reason: str) -> None:
        super().__init__(401, error, reason)
        self.user = user


async def authenticate(broker: "Broker", request: Request) -> tuple[str, tuple[str, ...]]:
    """The user's name and tags. Raises ApiError (401), in RabbitMQ's words."""
    name, password = credentials(request)
    if name in broker.config.loopback_users and not from_loopback(request):
        raise LoginFailed(name, "not_authorised", "User can only log in via localhost")
    try:
        await broker.access.authenticate(name, password)
    except AmqpError:
        raise LoginFailed(name, "not_authorized", "Login failed") from None
    tags = broker.topology.users[name].tags
    if not any(tag in tags for tag in MANAGEMENT_TAGS):
        raise LoginFailed(name, "not_authorised", "Not management user")
    return name, tags


def credentials(request: Request) -> tuple[str, str]:
    """User and password of a request. Raises ApiError (401)."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:  # no base64, no ASCII, no UTF-8
            colon = ""
        if colon:
            return name, password
    raise ApiError(401, "not_authorized", "Login failed")


def from_loopback(request: Request) -> bool:
    """Whether a request came from this machine."""
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
