"""Connections above a real broker's limits (tests/unit/host/test_doors.py has the rules)."""

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.running import RunningBroker

FEW = 300


class FewDescriptors(RunningBroker):
    program = (
        "-c",
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {FEW}));"
        "from rewindmq.engine.cli.main import main; main(['start', *sys.argv[1:]])",
    )


@pytest.fixture
def many_sockets() -> Iterator[int]:
    """Raise the limit of open files, and yield the number of sockets that this process may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield min(1_000, before[1] - 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
def test_idle_sockets_of_one_host_take_nothing_from_amqp_or_the_store(tmp_path: Path, many_sockets: int) -> None:
    broker = FewDescriptors(tmp_path / "data")
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection((broker.host, broker.http_port))) for _ in range(many_sockets)
        ]
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        body = bytes(20_000)
        for _ in range(1_500):  # more than three memtables
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        for taken, (method, _, found) in enumerate(channel.consume("q", inactivity_timeout=60), 1):
            assert method is not None, "nothing more came"
            assert found == body
            channel.basic_ack(method.delivery_tag)
            if taken == 750:
                break
        connection.close()
        assert is_closed(idle[0]), "new connections displace the oldest ones"
    metrics = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest")).text.splitlines()
    refused = [line for line in metrics if line.startswith("rewindmq_door_refused_total") and "http" in line]
    assert sum(float(line.split()[-1]) for line in refused) > many_sockets / 2
    assert broker.stop() == 0
    assert not [line for line in broker.errors if "can't be written" in line or "Traceback" in line]
    assert 0 < sum("connections since the last such line" in line for line in broker.errors) < 20
    assert list((tmp_path / "data" / "state").glob("*.sst")), "RocksDB never flushed: the test says nothing of it"
    again = FewDescriptors(tmp_path / "data")
    queue = httpx2.get(f"{again.http_url}/api/queues/%2F/q", auth=("guest", "guest")).json()
    assert queue["messages"] == 750
    assert again.stop() == 0


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
