"""A client of the management API for the command line. A refusal becomes one line and an exit code.

It stands on the standard library, so that a command answers at once: an HTTP library takes longer to import than a
listing takes. Even that of the standard library, and TLS, are imported at the first request only, because `--help` has
none.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from rewindmq import __version__ as VERSION
from rewindmq.engine.cli.exits import DATA, NO_PERMISSION, SOFTWARE, TIMEOUT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import one_line

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPMessage, HTTPResponse
    from ssl import SSLContext

Json = dict[str, object]
HTTP_PORT, HTTPS_PORT = 15672, 15671
PIECE_BYTES = 1 << 16


class RequestRefused(CliError):
    """The API answered with an error: HTTP `status`, its `reason`, and the whole `answer`."""

    def __init__(self, status: int, reason: str, answer: Json) -> None:
        code = NO_PERMISSION if status == 401 else DATA if status < 500 else UNAVAILABLE if status == 503 else SOFTWARE
        super().__init__(code, reason)
        self.status = status
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API."""

    status: int
    headers: "HTTPMessage"
    content: bytes

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode()

    def json(self) -> Any:
        """The content as JSON. Raises ValueError."""
        return json.loads(self.content)


def path(*segments: str) -> str:
    """Return an API path. Each segment is encoded, so that vhost `/` is `%2F`."""
    return "/api/" + "/".join(quote(segment, safe="") for segment in segments)


def trust(ca: Path | str | None) -> "SSLContext":
    """Return a context that trusts the certificate authority in a file, or the system's. CliError."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise CliError(USAGE, f"{ca}: no certificates to trust: {error}") from None


class Client:
    """One address of the API, with a user. Each request opens its own connection.

    url              http[s]://[user:password@]host:port
    timeout_seconds  to wait for the next bytes of an answer; None: no limit
    ca               file of the certificate authority of an https URL; None: the system's
    """

    def __init__(
        self, url: str, user: str, password: str, timeout_seconds: float | None, ca: Path | str | None = None
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(USAGE, f"{url!r} is not the address of a management API: give --url http://HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.host = parts.hostname
        self.trusted = trust(ca) if parts.scheme == "https" else None
        self.port = port or (HTTPS_PORT if self.trusted else HTTP_PORT)
        self.address = f"{parts.scheme}://{host}:{self.port}"
        self.timeout_seconds = timeout_seconds
        login = f"{unquote(parts.username or '') or user}:{unquote(parts.password or '') or password}"
        self.headers = {
            "authorization": f"Basic {b64encode(login.encode()).decode()}",
            "user-agent": f"rewindmq-cli/{VERSION}",
            "connection": "close",
        }

    def get(self, *segments: str, **query: str) -> list[Json]:
        """Return a listing. RequestRefused, CliError."""
        answer = self.request("GET", path(*segments), params=query).json()
        assert isinstance(answer, list), f"{segments} is not a listing"
        return answer

    def get_one(self, *segments: str, **query: str) -> Json:
        """One object. RequestRefused, CliError."""
        answer = self.request("GET", path(*segments), params=query).json()
        assert isinstance(answer, dict), f"{segments} is a listing"
        return answer

    def exists(self, *segments: str) -> bool:
        """Return True if the API has an object. Raises RequestRefused, CliError."""
        try:
            self.request("GET", path(*segments))
        except RequestRefused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def put(self, *segments: str, content: Mapping[str, object] | None = None) -> None:
        """Make or change an object. RequestRefused, CliError."""
        self.request("PUT", path(*segments), json=dict(content or {}))

    def delete(self, *segments: str, **query: str) -> Answer:
        """Delete an object. RequestRefused, CliError."""
        return self.request("DELETE", path(*segments), params=query)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request: a path, the parameters of its query, and as its body `json` or `content`.

        RequestRefused for an answer that is an error, CliError for none."""
        where = f"{url}?{urlencode(params)}" if params else url
        if json is not None:
            content, headers = json_bytes(json), {**(headers or {}), "content-type": "application/json"}
        with self._asked(method, where, content, headers or {}) as response:
            answer = self._whole(response)
        if not 200 <= answer.status < 300:
            raise self._refusal(method, url, answer)
        return answer

    @contextmanager
    def download(self, *segments: str) -> Iterator[Iterator[bytes]]:
        """Yield the pieces of a long answer. CliError, also in between, when the connection breaks."""
        url = path(*segments)
        with self._asked("GET", url, None, {}) as response:
            if response.status != 200:
                raise self._refusal("GET", url, self._whole(response))
            yield self._pieces(response)

    def _whole(self, response: "HTTPResponse") -> Answer:
        from http.client import HTTPException

        try:
            return Answer(response.status, response.headers, response.read())
        except (OSError, HTTPException) as error:
            raise self._without_answer(error) from None

    def _pieces(self, response: "HTTPResponse") -> Iterator[bytes]:
        from http.client import HTTPException, IncompleteRead

        try:
            while piece := response.read1(PIECE_BYTES):
                yield piece
            if response.length:  # http.client raises no error for the end of a connection before that of the answer
                raise IncompleteRead(b"", response.length)
        except TimeoutError as error:
            raise self._without_answer(error) from None
        except (OSError, HTTPException) as error:
            reason = one_line(str(error))
            raise CliError(UNAVAILABLE, f"{self.address} closed the connection in the middle: {reason}") from None

    @contextmanager
    def _asked(
        self, method: str, where: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Iterator["HTTPResponse"]:
        """Send a request, and yield the answer when its head has come. CliError."""
        from http.client import HTTPConnection, HTTPSConnection

        connection = (
            HTTPConnection(self.host, self.port, timeout=self.timeout_seconds)
            if self.trusted is None
            else HTTPSConnection(self.host, self.port, timeout=self.timeout_seconds, context=self.trusted)
        )
        encoded = {name: value.encode() for name, value in {**self.headers, **headers}.items()}
        try:
            yield self._answered(connection, method, where, content, encoded)
        finally:
            connection.close()

    def _answered(
        self, connection: "HTTPConnection", method: str, where: str, content: bytes | None, headers: Mapping[str, bytes]
    ) -> "HTTPResponse":
        from http.client import HTTPException

        try:
            try:
                connection.request(method, where, content, headers)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                return connection.getresponse()  # the broker refused before it had read all
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            raise self._without_answer(error) from None

    def _without_answer(self, error: Exception) -> CliError:
        if isinstance(error, (TimeoutError, BlockingIOError)):  # the latter for a limit of 0 seconds
            return CliError(
                TIMEOUT,
                f"operation on {self.address} timed out. Timeout value used:"
                f" {self.timeout_seconds} seconds (--timeout)",
            )
        return CliError(
            UNAVAILABLE,
            f"unable to connect to {self.address}: {one_line(str(error))}. Start a broker with"
            " 'rewindmq start', or say where it is with --url or REWINDMQ_URL",
        )

    def _refusal(self, method: str, url: str, response: Answer) -> CliError:
        answer: Json = {}
        try:
            answer = response.json()
            reason = str(answer["reason"])
        except (ValueError, KeyError, TypeError):
            answered = f"{self.address} answered {response.status} to {method} {url}"
            reason = f"{answered}: check that a RewindMQ broker is there"
        if response.status == 401 and reason == "Login failed":
            return CliError(DATA, f"login failed at {self.address}: give the right --user and --password")
        return RequestRefused(response.status, reason, answer)


def json_bytes(value: object) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
