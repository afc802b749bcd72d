"""A pytest plugin for the suites of aio-pika and aiormq, which want their RabbitMQ from Docker: they get the broker
that AMQP_PORT and AMQPS_PORT name. Loaded (`-p`) before their conftest.py, from the folder above their tests.

aiormq's source distribution lacks the conftest.py of its root: what that gives is here. aio-pika's own goes first.
"""

import os
import sys

sys.path.insert(0, os.getcwd())

import pytest
from yarl import URL

from tests import docker_client  # type: ignore[attr-defined]  # aio-pika's own tests, which this runs among


class DockerClient:
    def __init__(self, host: object = None) -> None:
        pass

    def run(self, image: str, ports: list[str], environment: object = None) -> object:
        return docker_client.ContainerInfo(
            "none", {"5672/tcp": int(os.environ["AMQP_PORT"]), "5671/tcp": int(os.environ["AMQPS_PORT"])}, "127.0.0.1"
        )

    def kill(self, container: str) -> None:
        pass

    remove = kill


docker_client.DockerClient = DockerClient
docker_client.check_docker_available = lambda: None


@pytest.fixture(scope="session")
def rabbitmq_container() -> object:
    return DockerClient().run("", [])


@pytest.fixture(scope="session")
def amqp_direct_url() -> URL:
    return URL(f"amqp://guest:guest@127.0.0.1:{os.environ['AMQP_PORT']}//")
