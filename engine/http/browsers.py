"""Keeps pages of other sites from using a browser that is logged in here, or that reaches a broker on loopback.

- A request that changes something is refused if the browser says that another site caused it. `Sec-Fetch-Site` decides,
  which no page can set. Without it, `Origin` has to be the host of the request. Programs (curl, rabbitmqadmin, ours)
  send neither header, and nothing changes for them.
- Another site may link to the API, but not load its answers.
- On loopback the `Host` has to be an address or localhost: a name that its owner points to 127.0.0.1 (DNS rebinding)
  would make that owner's page one of ours.
- Each answer forbids browsers to guess its content type, and to show it in a frame.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewindmq.engine.http.call import ApiError, reply
from rewindmq.engine.http.shapes.basics import ErrorView

SAFE = ("GET", "HEAD", "OPTIONS")
CHANGES = "/api/aliveness-test/"  # GET publishes there, as in RabbitMQ
OURS = ("same-origin", "none")  # Sec-Fetch-Site; none: the user typed the address
DEFAULT_PORTS = {"http": 80, "https": 443}
NOTHING = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {"x-content-type-options": "nosniff", "x-frame-options": "DENY", "content-security-policy": NOTHING}


class Guarded:
    """The application, which is called only if a request follows these rules."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            require_own_host(scope)
            require_own_site(scope)
        except ApiError as error:
            refusal = reply(ErrorView.of(error), error.status)
            refusal.headers["connection"] = "close"  # its body is not read
            await refusal(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)


def require_own_host(scope: Scope) -> None:
    """Raise ApiError unless a request on loopback names the broker by an address or as localhost.

    The client of a balancer on this machine may be elsewhere, and use the balancer's name."""
    client = scope["client"]
    if not is_loopback(scope["server"][0]) or (client is not None and not is_loopback(client[0])):
        return
    host = Headers(scope=scope).get("host")
    if host is None:  # HTTP/1.0, so no browser
        return
    name = (hostname(host) or "").rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or is_address(name):
        return
    raise ApiError(403, "forbidden", f"on loopback the Host is localhost or an address, not {host!r}")


def require_own_site(scope: Scope) -> None:
    """Raise ApiError if another site caused a request that changes something."""
    headers = Headers(scope=scope)
    path = scope["raw_path"].decode("ascii", "replace")
    changes = scope["method"] not in SAFE or path.startswith(CHANGES)
    site = headers.get("sec-fetch-site")
    if site in OURS:
        return
    if site is not None:
        followed = headers.get("sec-fetch-mode") == "navigate" and not changes
        if followed or not path.startswith("/api/"):
            return
        raise ApiError(403, "forbidden", "a page of another site asked for this (Sec-Fetch-Site)")
    origin = headers.get("origin")
    if origin is not None and changes and not is_same(origin, headers.get("host", "")):
        raise ApiError(403, "forbidden", f"a page of another site asked for this (Origin: {origin})")


def is_same(origin: str, host: str) -> bool:
    """Return True if the origin is the host of the request. Schemes may differ, because TLS may end at a proxy."""
    try:
        from_there, here = urlsplit(origin), urlsplit(f"{urlsplit(origin).scheme}://{host}")
        default = DEFAULT_PORTS.get(from_there.scheme)
        return default is not None and (from_there.hostname, from_there.port or default) == (
            here.hostname,
            here.port or default,
        )
    except ValueError:
        return False


def stays_here(redirect: str) -> bool:
    """Return True if the address is relative, and so leads to no other site. (Browsers read a backslash as a slash.)"""
    try:
        parts = urlsplit(redirect.strip())
    except ValueError:
        return False
    return not (parts.scheme or parts.netloc or redirect.strip().startswith("//") or "\\" in redirect)


def hostname(host: str) -> str | None:
    """Return the host of a Host or Origin header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Return True if a host is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return True if an address belongs to this machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
