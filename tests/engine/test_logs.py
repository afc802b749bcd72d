"""What a broker logs: a line with time and level; not by what Python would do without us."""

import re
from collections.abc import Callable

import pika

from tests.running import RunningBroker

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[(\w+)\] (.+)\n")


def test_lines_have_a_time_and_a_level(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker()
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    assert running.stop() == 0
    found = [LINE.fullmatch(line) for line in running.errors]
    assert all(found), running.errors
    said = [(match[1], match[2]) for match in found if match is not None]
    assert any(level == "info" and text.endswith("user 'guest' connected to vhost '/'") for level, text in said), said
    assert said[-1] == ("info", "stopped")


def test_what_is_less_than_the_level_is_not_said(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker(None, "--log-level", "error")
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    assert running.stop() == 0
    assert running.errors == []
