"""A client of the management API for the command line. A refusal becomes one line and an exit code."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from rewindmq import __version__ as VERSION
from rewindmq.engine.cli.exits import DATA, NO_PERMISSION, SOFTWARE, TIMEOUT, UNAVAILABLE, USAGE, CliError

if TYPE_CHECKING:
    import httpx

Json = dict[str, object]
HTTP_PORT, HTTPS_PORT = 15672, 15671


class RequestRefused(CliError):
    """The API answered with an error: HTTP `status`, its `reason`, and the whole `answer`."""

    def __init__(self, status: int, reason: str, answer: Json) -> None:
        code = NO_PERMISSION if status == 401 else DATA if status < 500 else UNAVAILABLE if status == 503 else SOFTWARE
        super().__init__(code, reason)
        self.status = status
        self.reason = reason
        self.answer = answer


def path(*segments: str) -> str:
    """Return an API path. Each segment is encoded, so that vhost `/` is `%2F`."""
    return "/api/" + "/".join(quote(segment, safe="") for segment in segments)


def trust(ca: Path | str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificate authority in a file, or the system's. CliError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise CliError(USAGE, f"{ca}: no certificates to trust: {error}") from None


class Client:
    """One address of the API, with a user.

    url              http[s]://[user:password@]host:port
    timeout_seconds  of each request; None: no limit
    ca               file of the certificate authority of an https URL; None: the system's
    """

    def __init__(
        self, url: str, user: str, password: str, timeout_seconds: float | None, ca: Path | str | None = None
    ) -> None:
        import httpx  # here, and below: with all that it imports it takes 8 MB, which `start` does not need

        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(USAGE, f"{url!r} is not the address of a management API: give --url http://HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.host = parts.hostname
        over_tls = parts.scheme == "https"
        self.address = f"{parts.scheme}://{host}:{port or (HTTPS_PORT if over_tls else HTTP_PORT)}"
        self.timeout_seconds = timeout_seconds
        credentials = (parts.username or user, parts.password or password)
        self.http = httpx.Client(
            base_url=self.address,
            auth=credentials,
            headers={"user-agent": f"rewindmq-cli/{VERSION}"},
            timeout=timeout_seconds,
            trust_env=False,
            verify=trust(ca) if over_tls else False,
        )

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
        """Make or changes an object. RequestRefused, CliError."""
        self.request("PUT", path(*segments), json=dict(content or {}))

    def delete(self, *segments: str, **query: str) -> "httpx.Response":
        """Delete an object. RequestRefused, CliError."""
        return self.request("DELETE", path(*segments), params=query)

    def request(self, method: str, url: str, **options: object) -> "httpx.Response":
        """Send one request. RequestRefused for an answer that is an error, CliError for none."""
        import httpx

        try:
            response = self.http.request(method, url, **options)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            raise self._without_answer(error) from None
        if response.is_success:
            return response
        raise self._refusal(method, url, response)

    @contextmanager
    def download(self, *segments: str) -> Iterator[Iterator[bytes]]:
        """Yield the pieces of a long answer. CliError, also in between, when the connection breaks."""
        import httpx

        url, begun = path(*segments), False
        try:
            with self.http.stream("GET", url) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal("GET", url, response)
                begun = True
                yield response.iter_bytes()
        except httpx.HTTPError as error:
            if begun and not isinstance(error, httpx.TimeoutException):
                raise CliError(UNAVAILABLE, f"{self.address} closed the connection in the middle: {error}") from None
            raise self._without_answer(error) from None

    def _without_answer(self, error: "httpx.HTTPError") -> CliError:
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return CliError(
                TIMEOUT,
                f"operation on {self.address} timed out. Timeout value used:"
                f" {self.timeout_seconds} seconds (--timeout)",
            )
        return CliError(
            UNAVAILABLE,
            f"unable to connect to {self.address}: {error}. Start a broker with 'rewindmq"
            " start --data DIR', or say where it is with --url or REWINDMQ_URL",
        )

    def _refusal(self, method: str, url: str, response: "httpx.Response") -> CliError:
        answer: Json = {}
        try:
            answer = response.json()
            reason = str(answer["reason"])
        except (ValueError, KeyError, TypeError):
            answered = f"{self.address} answered {response.status_code} to {method} {url}"
            reason = f"{answered}: check that a RewindMQ broker is there"
        if response.status_code == 401 and reason == "Login failed":
            return CliError(DATA, f"login failed at {self.address}: give the right --user and --password")
        return RequestRefused(response.status_code, reason, answer)
