"""Limits of users and vhosts on connections and channels, as a client meets them: 530, RabbitMQ's texts."""

from collections.abc import Callable, Iterator

import httpx2
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError

from tests.support.commands import metadata_events
from tests.support.running import RunningBroker

REFUSED = "NOT_ALLOWED - "


@pytest.fixture
def http(broker: RunningBroker) -> Iterator[httpx2.Client]:
    """A client of the API, with a user `few` who has all permissions in a vhost `small`."""
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest")) as client:
        client.put("/api/users/few", json={"password": "few", "tags": ""}).raise_for_status()
        client.put("/api/vhosts/small").raise_for_status()
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        client.put("/api/permissions/small/few", json=rights).raise_for_status()
        yield client
        client.delete("/api/users/few").raise_for_status()
        client.delete("/api/vhosts/small").raise_for_status()


def connect(broker: RunningBroker) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.amqp_port, "small", pika.PlainCredentials("few", "few"))
    )


def limited(http: httpx2.Client, path: str, value: int) -> None:
    http.put(path, json={"value": value}).raise_for_status()


def refused(broker: RunningBroker) -> str:
    with pytest.raises(ProbableAccessDeniedError) as caught:
        connect(broker)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "/api/user-limits/few/max-connections",
            "connection refused for user 'few': user connection limit (2) is reached",
        ),
        (
            "/api/vhost-limits/small/max-connections",
            "access to vhost 'small' refused for user 'few': connection limit (2) is reached",
        ),
    ],
)
def test_connections(broker: RunningBroker, http: httpx2.Client, path: str, text: str) -> None:
    first = connect(broker)
    limited(http, path, 2)  # who is there stays
    second = connect(broker)
    assert refused(broker) == f'ConnectionClosedByBroker: (530) "{REFUSED}{text}"'
    second.close()
    third = connect(broker)
    refused(broker)
    http.delete(path).raise_for_status()
    for connection in (first, third, connect(broker)):
        connection.close()


def test_a_limit_of_none_at_all(broker: RunningBroker, http: httpx2.Client) -> None:
    limited(http, "/api/user-limits/few/max-connections", 0)
    assert "user connection limit (0) is reached" in refused(broker)
    limited(http, "/api/user-limits/few/max-connections", -1)  # as if there were none
    connect(broker).close()


def test_channels(broker: RunningBroker, http: httpx2.Client) -> None:
    """Of all connections of the user together."""
    limited(http, "/api/user-limits/few/max-channels", 2)
    one, two = connect(broker), connect(broker)
    one.channel()
    two.channel().close()
    two.channel()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        two.channel()
    text = "number of channels opened for user 'few' has reached the maximum allowed user limit of (2)"
    assert (caught.value.reply_code, caught.value.reply_text) == (530, REFUSED + text)
    one.channel()
    one.close()


def test_the_largest_message_is_an_option(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker(None, "--max-message-size", "1000")
    connection = pika.BlockingConnection(pika.ConnectionParameters(running.host, running.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"x" * 1000)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"x" * 1001)
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)
    connection.close()
    (refused,) = metadata_events(running.data, "AccessRefused")
    assert (refused["operation"], refused["kind"], refused["name"]) == ("basic.publish", "exchange", "")
