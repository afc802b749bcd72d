"""The command line's client of the management API, with servers that break off or answer nonsense."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rewindmq.engine.cli.client import Client, RequestRefused
from rewindmq.engine.cli.exits import TIMEOUT, UNAVAILABLE, CliError

SECONDS = 20.0


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[Client]:
    """Serve one connection, and yield a client of this server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Client(f"http://127.0.0.1:{server.getsockname()[1]}", "guest", "guest", SECONDS)
        thread.join()


def sending(content: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(content)

    return answer


def test_a_refusal_counts_although_the_server_reads_no_more() -> None:
    body = b'{"error":"too_large","reason":"the body is too large"}'
    head = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    with (
        serving(sending(head + body)) as client,
        pytest.raises(RequestRefused, match="the body is too large") as refused,
    ):
        client.request("POST", "/api/definitions", content=b"x" * 20_000_000)
    assert refused.value.status == 413


@pytest.mark.parametrize("status", [b"200 OK", b"500 Broken"])
def test_an_answer_that_ends_too_early_is_one_line(status: bytes) -> None:
    content = b"HTTP/1.1 %s\r\nContent-Length: 100\r\n\r\nhalf" % status
    with serving(sending(content)) as client, pytest.raises(CliError) as failed:
        client.request("GET", "/api/overview")
    assert failed.value.code == UNAVAILABLE
    with serving(sending(content)) as client, pytest.raises(CliError) as failed, client.download("state") as pieces:
        assert list(pieces) == []
    assert failed.value.code == UNAVAILABLE


def test_what_another_protocol_answers_cannot_control_a_terminal() -> None:
    with serving(sending(b"AMQP\x00\x00\x09\x01\x1b]0;title\x07\r\n")) as client, pytest.raises(CliError) as failed:
        client.request("GET", "/api/overview")
    assert failed.value.code == UNAVAILABLE
    assert str(failed.value).isprintable()


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for seconds in (0.0, 0.1):
            client = Client(f"http://127.0.0.1:{server.getsockname()[1]}", "guest", "guest", seconds)
            with pytest.raises(CliError, match="timed out") as failed:
                client.request("GET", "/api/overview")
            assert failed.value.code == TIMEOUT
