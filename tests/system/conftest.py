"""Clients of the module's broker: of its management API, and a connection of pika with a channel that has confirms."""

from collections.abc import Iterator

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.http_clients import api_client
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx2.Client]:
    with api_client(broker) as client:
        yield client


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[pika.BlockingConnection]:
    connection = connect(broker)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel
