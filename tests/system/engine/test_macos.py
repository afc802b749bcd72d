"""A broker without the calls that Python lacks on macOS. F_FULLFSYNC is there, and Linux refuses it."""

from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.running import RunningBroker

WITHOUT = """
import fcntl, os, resource, socket, sys, time
for module, names in (
    (os, ("fdatasync", "posix_fallocate", "sched_getaffinity", "pidfd_open")),
    (socket, ("SOCK_CLOEXEC", "SOCK_NONBLOCK")),
    (time, ("CLOCK_BOOTTIME", "pthread_getcpuclockid")),
):
    for name in names:
        delattr(module, name)
fcntl.F_FULLFSYNC = 51
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
resource.getrlimit = lambda which: (limit, resource.RLIM_INFINITY)
resource.setrlimit = lambda which, limits: None
from rewindmq.engine.cli.main import main
main(["start", *sys.argv[1:]])
"""


class LikeMacos(RunningBroker):
    program = ("-c", WITHOUT)


@pytest.mark.long
def test_a_broker_without_linuxs_calls_starts_confirms_and_keeps_it(tmp_path: Path) -> None:
    broker = LikeMacos(tmp_path / "data")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(5):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    node = httpx2.get(f"{broker.http_url}/api/nodes", auth=("guest", "guest")).json()[0]
    assert node["fd_used"] > 0
    assert (tmp_path / "data/log/_reserve").stat().st_size > 0
    broker.kill()
    again = LikeMacos(tmp_path / "data")
    assert httpx2.get(f"{again.http_url}/api/queues/%2F/q", auth=("guest", "guest")).json()["messages"] == 5
    assert again.stop() == 0
