"""Sends spans to a collector: OTLP over HTTP, as protobuf. The broker does not import this.

    with Collector("http://localhost:4318", {"authorization": "Bearer ..."}) as collector:
        collector.send(spans)
    collector.sent, collector.rejected, collector.reason

A busy collector (429, 502, 503, 504) is retried for PATIENCE_SECONDS, at its Retry-After or after a growing pause; one
that does not answer is retried for AWAY_SECONDS. Every other refusal is final.
"""

import random
import ssl
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from rewindmq import __version__
from rewindmq.projections.traces.spans import Span, Value

if TYPE_CHECKING:
    import httpx2

BATCH_SPANS = 512
ANSWER_SECONDS = 10.0  # OTLP's own default
PATIENCE_SECONDS = 60.0  # with a busy collector, for each batch
AWAY_SECONDS = 15.0  # with one that does not answer, because it may be restarting
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
BUSY = (429, 502, 503, 504)
PATH = "/v1/traces"
_NS = 1_000_000  # in a millisecond
_SHOWN = 200  # characters of a collector's reason


class BadCollector(Exception):
    """The address or the headers make no sense; the text explains why."""


class CollectorAway(Exception):
    """The collector does not answer or stays busy, or this installation lacks OTLP; the text says which."""


class SpansRefused(Exception):
    """The collector refused the spans; the text says why."""


class Collector:
    """An OpenTelemetry collector, by the address of its receiver. `headers`: for each request."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raise BadCollector, or CollectorAway if a package is missing."""
        try:
            import opentelemetry.proto.collector.trace.v1.trace_service_pb2 as service
        except ModuleNotFoundError:
            why = "OTLP needs the package opentelemetry-proto: pip install 'rewindmq[otlp]'"
            raise CollectorAway(why) from None
        import httpx2

        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadCollector(f"--otlp is the address of a collector, such as http://localhost:4318, not {url!r}")
        self.url = url.rstrip("/") + ("" if parts.path.rstrip("/").endswith(PATH) else PATH)
        self.sent = self.rejected = 0
        self.reason = ""  # of the last partial success
        self._service = service
        try:
            self._http = httpx2.Client(
                headers={"user-agent": f"rewindmq/{__version__}", **headers, "content-type": "application/x-protobuf"},
                timeout=ANSWER_SECONDS,
                trust_env=False,
                verify=ssl.create_default_context() if parts.scheme == "https" else False,
            )
        except (UnicodeEncodeError, ValueError) as error:
            raise BadCollector(f"--header: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        self._http.close()

    def send(self, spans: Iterable[Span]) -> None:
        """Send spans, some hundreds a request. Raises CollectorAway, SpansRefused."""
        spans = list(spans)
        for begin in range(0, len(spans), BATCH_SPANS):
            batch = spans[begin : begin + BATCH_SPANS]
            answer = self._answer(self._request(batch))
            rejected = min(max(answer.partial_success.rejected_spans, 0), len(batch))
            self.sent += len(batch) - rejected
            self.rejected += rejected
            self.reason = answer.partial_success.error_message[:_SHOWN] or self.reason

    def _request(self, spans: list[Span]) -> bytes:
        request = self._service.ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        _put(resource.resource.attributes, {"service.name": "rewindmq"})
        scope = resource.scope_spans.add()
        scope.scope.name, scope.scope.version = "rewindmq", __version__
        for span in spans:
            found = scope.spans.add(
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                parent_span_id=bytes.fromhex(span.parent_id),
                trace_state=span.state,
                flags=span.flags,
                name=_text(span.name),
                kind=1,  # internal: neither a client nor a server of anybody else's span
                start_time_unix_nano=span.start_ms * _NS,
                end_time_unix_nano=span.end_ms * _NS,
            )
            _put(found.attributes, span.attributes)
            if span.error is not None:
                found.status.code, found.status.message = 2, _text(span.error)
        return bytes(request.SerializeToString())

    def _answer(self, content: bytes) -> Any:
        """Return the collector's answer to a batch. Raises CollectorAway, SpansRefused."""
        import httpx2
        from google.protobuf.message import DecodeError

        begun, pause = time.monotonic(), FIRST_PAUSE
        while True:
            wait = None
            try:
                response = self._http.post(self.url, content=content)
            except httpx2.TransportError as error:
                patience, why = AWAY_SECONDS, f"does not answer: {str(error) or type(error).__name__}"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise BadCollector(f"the collector at {self.url} cannot be asked: {error}") from None
            else:
                if response.is_success:
                    try:
                        return self._service.ExportTraceServiceResponse.FromString(response.content)
                    except DecodeError:
                        raise SpansRefused(f"{self.url} is no OTLP receiver: its answer is no protobuf") from None
                if response.status_code not in BUSY:
                    raise SpansRefused(f"the collector at {self.url} refuses the spans: {_told(response)}")
                patience, why = PATIENCE_SECONDS, f"is busy: {_told(response)}"
                wait = _retry_after(response.headers.get("retry-after"))
            wait = pause * random.uniform(0.5, 1.0) if wait is None else wait
            if time.monotonic() + wait > begun + patience:
                raise CollectorAway(f"the collector at {self.url} {why}")
            time.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE)


def _told(response: "httpx2.Response") -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def _retry_after(text: str | None) -> float | None:
    """Return the seconds in a Retry-After, a number or a date. None: missing or senseless."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _put(target: Any, attributes: Mapping[str, Value]) -> None:
    for name, value in attributes.items():
        kind = "bool_value" if isinstance(value, bool) else "int_value" if isinstance(value, int) else "string_value"
        entry = target.add(key=name)
        setattr(entry.value, kind, _text(value) if isinstance(value, str) else value)


def _text(value: str) -> str:
    """Return text for protobuf, because names of queues may have bytes that are not UTF-8."""
    return value.encode("utf-8", "replace").decode()
