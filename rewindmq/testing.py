"""A pytest plugin: one broker for a test run, a virtual host for each test, and the history in assertions.

    pytest_plugins = ["rewindmq.testing"]                       # in a conftest, or at the top of a test module

    def test_an_order_is_worked_on(rewindmq):
        my_service.run_once(rewindmq.url)                       # amqp://guest:guest@127.0.0.1:PORT/VHOST
        assert [row["outcome"] for row in rewindmq.history("orders")] == ["published", "delivered", "acked"]

The report of a failed test has the lives of the messages in the test's queues. With pytest-xdist each worker
starts its own broker. The data are temporary.
"""

import random
import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rewindmq.engine.cli.child_broker import LOOPBACK, OTHERS, ChildBroker
from rewindmq.engine.cli.client import RequestRefused, path
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError

FIXTURE = "rewindmq"
_numbers = count(1)  # of virtual hosts: a reused name would show the history of an earlier test
MOST_ROWS = 10_000  # of a queue, that `history` returns
LIVES_SHOWN = 10  # in the report of a failed test
COLUMNS = ("user", "reason", "rule")

Outcome = dict[str, Any]  # a row of /api/history/outcomes, whose columns are those of Spark's table HISTORY


class TestVhost:
    """The virtual host of a test.

    name      of the virtual host
    url       for AMQP clients
    http_url  of the management API; the user is guest, and so is the password"""

    __test__ = False  # pytest would collect it, for its name

    def __init__(self, broker: ChildBroker, name: str) -> None:
        self.name = name
        self.url = f"amqp://guest:guest@{LOOPBACK}:{broker.amqp_port}/{quote(name, safe='')}"
        self.http_url = f"http://{LOOPBACK}:{broker.http_port}"
        self._client = broker.client()

    def queues(self) -> list[str]:
        """Return the names of the queues."""
        return [str(queue["name"]) for queue in self._client.get("queues", self.name, columns="name")]

    def history(self, queue: str) -> list[Outcome]:
        """Return what happened to the messages of a queue, in order: at most the last 10,000 outcomes.

        Nothing, if the queue was never declared. Only what is durable is there: after an ack, which no broker answers,
        use `wait_for`. CliError."""
        where = path("history", "outcomes", self.name, queue)
        answer = self._client.request("GET", where, params={"tail": str(MOST_ROWS)}).json()
        if not answer["complete"]:
            raise CliError(
                UNAVAILABLE, f"the history of queue {queue} could not be read in the broker's time for a question"
            )
        rows: list[Outcome] = answer["rows"]
        return rows

    def wait_for(self, queue: str, outcome: str, least: int = 1, seconds: float = 10.0) -> list[Outcome]:
        """Wait until a queue has at least `least` rows of an outcome ("acked", "expired" ...), and return its history.

        AssertionError: it has fewer after this time."""
        deadline = time.monotonic() + seconds
        while True:
            rows = self.history(queue)
            found = sum(row["outcome"] == outcome for row in rows)
            if found >= least:
                return rows
            if time.monotonic() > deadline:
                raise AssertionError(f"queue {queue}: {found} messages are {outcome} after {seconds:g} s, not {least}")
            time.sleep(0.01)

    def lives(self) -> str:
        """Return, for people, what happened to messages: first to those that were not acked."""
        lines: list[str] = []
        for queue in self.queues():
            lives: dict[tuple[str, int], list[Outcome]] = {}
            for row in self.history(queue):
                if row["message_id"] is not None:
                    lives.setdefault((row["partition"], row["message_id"]), []).append(row)
            ordered = sorted(lives.items(), key=lambda life: life[1][-1]["outcome"] == "acked")
            lines.append(f"queue {queue}: {len(lives)} messages")
            for (partition, message_id), rows in ordered[:LIVES_SHOWN]:
                lines.append(f"  message {partition}:{message_id}")
                lines += [f"    {_line(row)}" for row in rows]
            if len(lives) > LIVES_SHOWN:
                lines.append(f"  ... and {len(lives) - LIVES_SHOWN} more")
        return "\n".join(lines) or "no queue was declared"


def _line(row: Outcome) -> str:
    said = ", ".join(f"{name} {row[name]}" for name in COLUMNS if row[name])
    return f"{row['timestamp']}  {row['outcome']}" + (f"  ({said})" if said else "")


@pytest.fixture(scope="session")
def rewindmq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildBroker]:
    """The broker of this test run."""
    data: Path = tmp_path_factory.mktemp("rewindmq")
    broker = ChildBroker(data, *random.sample(OTHERS, 2))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(name=FIXTURE)
def rewindmq_vhost(rewindmq_broker: ChildBroker, request: pytest.FixtureRequest) -> Iterator[TestVhost]:
    """A virtual host of the broker for this test alone, which is deleted afterwards."""
    name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', request.node.nodeid)[-100:]}-{next(_numbers)}"
    client = rewindmq_broker.client()
    client.put("vhosts", name)
    client.put("permissions", name, "guest", content={"configure": ".*", "write": ".*", "read": ".*"})
    yield TestVhost(rewindmq_broker, name)
    try:
        client.delete("vhosts", name)
    except RequestRefused as refused:
        if refused.status != 404:  # the test may have deleted it
            raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add what happened to the messages to the report of a failed test."""
    report: pytest.TestReport = yield  # type: ignore[assignment]  # what other hooks made
    vhost = getattr(item, "funcargs", {}).get(FIXTURE)
    if report.when == "call" and report.failed and isinstance(vhost, TestVhost):
        try:
            text = vhost.lives()
        except Exception as error:  # pytest would end the whole run
            text = f"it cannot be told: {error}"
        report.sections.append(("RewindMQ: what happened to the messages", text))
    return report  # type: ignore[return-value]
