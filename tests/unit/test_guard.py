"""A unit test that does something forbidden is refused, and told where such a test belongs (tests/unit/conftest.py)."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.unit.conftest import Refused, guarded

TRIES: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""]),
    "multiprocessing": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    "fork": lambda: os.fork(),
    "another machine": lambda: socket.socket().connect(("192.0.2.1", 80)),
}


@pytest.mark.parametrize("what", TRIES)
def test_it_is_refused_even_where_the_refusal_is_swallowed(what: str) -> None:
    phase = guarded()
    next(phase)
    with pytest.raises(Refused, match="belongs in tests/system"):
        TRIES[what]()
    with pytest.raises(Refused, match="belongs in tests/system"):
        next(phase)


def test_a_server_of_the_tests_own_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
