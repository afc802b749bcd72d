"""A restoration with a rate: at most so many messages a second, also for a client that hangs up (B-33)."""

import base64
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import httpx2
import pika
import pytest
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.engine.cli.main import rewindmq
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.running import RunningBroker, start_process

pytestmark = pytest.mark.long


@pytest.fixture
def channel(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    yield connection.channel()
    connection.close()


def purged(channel: BlockingChannel, queue: str, messages: int) -> None:
    """Put messages into the queue and purge it."""
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    channel.queue_purge(queue)


def ready(api: httpx2.Client, queue: str) -> int:
    answer = api.get(f"/queues/%2F/{queue}")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["messages_ready"])


def published_at(api: httpx2.Client, queue: str) -> list[float]:
    """The log's times of the messages in the queue, in seconds."""
    answer = api.get(f"/queues/%2F/{queue}/at", params={"time": "-0s"})
    if answer.status_code != 200:
        raise AssertionError(answer.text)
    return [datetime.fromisoformat(each["published"]).timestamp() for each in answer.json()["message_details"]]


@pytest.mark.parametrize(("rate", "messages"), [(7, 10), (50, 60)])
def test_b33_messages_come_back_no_faster_than_the_rate(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel, rate: int, messages: int
) -> None:
    purged(channel, queue, messages)
    command = ["--url", broker.http_url, "restore", queue, "--undo", "purge", "--rate", str(rate)]
    done = CliRunner().invoke(rewindmq, command)
    assert done.exit_code == 0, done.output
    times = published_at(api, queue)
    assert len(times) == messages
    portion = max(1, rate // 10)
    for first, last in zip(times, times[portion:], strict=False):  # the next portion waits for its predecessor's time
        assert last - first >= portion / rate - 0.002, "the log has whole milliseconds"


def test_b33_duplicates_cost_no_time(api: httpx2.Client, queue: str, channel: BlockingChannel) -> None:
    """Asked again, it passes what is back at once: at this rate it would take five minutes."""
    purged(channel, queue, 300)
    assert api.post(f"/queues/%2F/{queue}/restore", json={"undo": "purge"}).json()["restored"] == 300
    again = api.post(f"/queues/%2F/{queue}/restore", json={"undo": "purge", "rate": 1}).json()
    assert (again["restored"], again["duplicates"]) == (0, 300)


@contextmanager
def asking(broker: RunningBroker, queue: str, content: dict[str, object]) -> Iterator[None]:
    """A client that has asked for a restoration, and hangs up at the end."""
    body = json.dumps({"undo": "purge", **content}).encode()
    login = base64.b64encode(b"guest:guest").decode()
    head = f"POST /api/queues/%2F/{queue}/restore HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
    with socket.create_connection(("127.0.0.1", broker.http_port)) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield


def test_b33_it_goes_on_when_its_client_hangs_up(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    purged(channel, queue, 40)
    with asking(broker, queue, {"rate": 10}):
        until(lambda: ready(api, queue) > 0, "nothing came back")
    until(lambda: ready(api, queue) == 40, "the restoration ended with its client")


@pytest.mark.parametrize(("end", "status"), [(RunningBroker.stop, 0), (RunningBroker.kill, -9)])
def test_b33_others_are_served_meanwhile_and_asking_again_finishes_it(
    tmp_path: Path, end: Callable[[RunningBroker], int], status: int
) -> None:
    broker = RunningBroker(tmp_path)
    with api_client(broker) as api:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            purged(channel, "orders", 200)
        with asking(broker, "orders", {"rate": 1}):
            until(lambda: ready(api, "orders") >= 2, "nothing came back")
            with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
                connection.channel().basic_get("orders")  # and returns it
            assert end(broker) == status
    broker = RunningBroker(tmp_path)
    with api_client(broker) as api:
        there = ready(api, "orders")
        assert 0 < there < 200
        again = api.post("/queues/%2F/orders/restore", json={"undo": "purge"}).json()
        assert (again["restored"], again["duplicates"]) == (200 - there, there)
    assert broker.stop() == 0


def test_b47_a_restoration_is_cancelled_and_finished_by_asking_again(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    place = f"/queues/%2F/{queue}/restore"
    purged(channel, queue, 40)
    assert api.delete(place).status_code == 404
    with asking(broker, queue, {"rate": 5, "name": "n"}):
        until(lambda: ready(api, queue) > 0, "nothing came back")
        assert api.delete(place, params={"name": "other"}).status_code == 404
        stranger = httpx2.delete(f"{broker.http_url}/api{place}", auth=("guest", "wrong"))
        assert stranger.status_code == 401
        [cancelled] = api.delete(place, params={"name": "n"}).json()["cancelled"]
    there = ready(api, queue)
    assert 0 < there < 40
    assert cancelled == {"name": "n", "to": queue, "messages": 40, "back": there}
    assert ready(api, queue) == there
    assert api.delete(place).status_code == 404
    done = run("events", "--data", str(broker.data), "--format", "json")
    told = [json.loads(line)["fields"].get("request", "") for line in done.stdout.splitlines() if "PastRead" in line]
    assert f"cancelled&name=n&to={queue}&back={there}&of=40" in told
    again = api.post(place, json={"undo": "purge", "name": "n"}).json()
    assert (again["restored"], again["duplicates"], again["cancelled"]) == (40 - there, there, False)


def test_b47_ctrl_c_cancels_the_command_s_restoration(
    broker: RunningBroker, api: httpx2.Client, queue: str, channel: BlockingChannel
) -> None:
    purged(channel, queue, 40)
    arguments = ["restore", queue, "--undo", "purge", "--rate", "1"]
    command = [str(Path(sys.executable).parent / "rewindmq"), "--url", broker.http_url, *arguments]
    process = start_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: ready(api, queue) > 0, "nothing came back")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    there = ready(api, queue)
    assert process.returncode == 130, told
    assert f"{there} of 40 messages are back in '{queue}'" in told
    again = api.post(f"/queues/%2F/{queue}/restore", json={"undo": "purge"}).json()
    assert (again["restored"], again["duplicates"]) == (40 - there, there)
