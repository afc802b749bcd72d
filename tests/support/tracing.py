"""Traced messages, the spans that `rewindmq spans` prints of them, and a receiver of OTLP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rewindmq.projections.rewind import format_time
from tests.support.commands import Cli
from tests.support.http_clients import publish_to
from tests.support.running import RunningBroker

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
BEGINNING = format_time(0)


def called(broker: RunningBroker, method: str, path: str, **content: Any) -> Any:
    """Call the management API. Returns its answer."""
    url = f"{broker.http_url}/api/{path}"
    answer = httpx2.request(method, url, json=content, auth=("guest", "guest"), trust_env=False)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def take(broker: RunningBroker, queue: str, ackmode: str) -> None:
    assert len(called(broker, "POST", f"queues/%2F/{queue}/get", count=1, ackmode=ackmode, encoding="auto")) == 1


def traced(broker: RunningBroker, queue: str, message_id: str, **headers: str) -> None:
    """Publish a message of the trace."""
    publish_to(broker, queue, "body", message_id=message_id, headers={"traceparent": TRACEPARENT, **headers})


def printed(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    """Return the spans that `rewindmq spans` prints."""
    done = cli("spans", *arguments, "--since", BEGINNING)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Receiver(ThreadingHTTPServer):
    """Answers with each of `answers` in turn: a status, headers, a body. Then with success."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest.FromString(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, request))
        status, more, content = self.server.answers.pop(0) if self.server.answers else (200, {}, b"")
        self.send_response(status)
        for name, value in (more | {"content-length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def receiving(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Receiver]:
    """Run a receiver that gives these answers."""
    with Receiver(*answers) as receiver:
        thread = Thread(target=receiver.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()
