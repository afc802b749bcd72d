"""A connection of pika's blocking client to the module's broker, and a channel with confirms on it."""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker


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
