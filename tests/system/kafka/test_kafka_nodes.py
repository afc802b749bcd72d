"""Two nodes on one Kafka, with real clients: what is done on one is so on the other, in RabbitMQ's words.

What becomes of messages that expire, wait or are refused is in test_kafka_nodes_messages.py; what follows when nodes
end, die or stand still is in test_kafka_nodes_ending.py.
"""

import asyncio
from typing import Any

import aio_pika
import aiormq
import pika
import pytest
from aiormq.abc import DeliveredMessage
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    UnroutableError,
)

from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event
from rewindmq.schemas.metadata_events import GlobalParameterSet, ParameterSet, PolicySet, VhostCreated
from rewindmq.schemas.producer import Publisher
from rewindmq.schemas.values import BROKER
from tests.support.deadlines import SECONDS, until
from tests.support.http_clients import api_client
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.producers import ordered_producer
from tests.support.kafka.two_nodes import PERSISTENT, catch_up, counts, in_each_partition, take
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long(nodes=["all"])


def refused(code: int, text: str, node: RunningBroker, what: str, *arguments: Any, **options: Any) -> None:
    """A method that must close its channel with this code and text."""
    with connect(node) as connection:
        channel = connection.channel()
        catch_up(channel)
        with pytest.raises(ChannelClosedByBroker) as refusal:
            getattr(channel, what)(*arguments, **options)
        assert (refusal.value.reply_code, refusal.value.reply_text) == (code, text)


def test_declared_here_used_there(here: BlockingChannel, there: BlockingChannel, name: str) -> None:
    here.exchange_declare(name, "topic", durable=True)
    here.queue_declare(name, durable=True)
    here.queue_bind(name, name, "a.#")
    catch_up(there)
    there.basic_publish(name, "a.0", b"0", PERSISTENT, mandatory=True)
    for number in range(1, 200):
        there.basic_publish(name, "a.b", b"%d" % number, PERSISTENT, mandatory=True)
    with pytest.raises(UnroutableError):
        there.basic_publish(name, "b", b"", PERSISTENT, mandatory=True)
    catch_up(here)
    assert counts(here, name) == counts(there, name) == (200, 0)
    taken = take(here, name, 100)
    assert [(int(body), redelivered) for body, redelivered, _ in taken] == [(n, False) for n in range(100)]
    catch_up(here)  # what was prefetched has been returned
    there.basic_publish("", name, b"200", PERSISTENT)
    assert [int(body) for body, _, _ in take(there, name, 101)] == list(range(100, 201))
    for _ in range(3):
        here.basic_publish("", name, b"", PERSISTENT)
    assert there.queue_purge(name).method.message_count == 3
    here.basic_publish("", name, b"", PERSISTENT)
    assert there.queue_delete(name).method.message_count == 1
    until(lambda: gone(here, name), "the other node still has the queue")


def gone(channel: BlockingChannel, queue: str) -> bool:
    """Asked on a channel of its own, which it may cost."""
    return not answers(channel, "queue_declare", queue)


def answers(channel: BlockingChannel, what: str, name: str) -> bool:
    asking = channel.connection.channel()
    try:
        getattr(asking, what)(name, passive=True)
    except ChannelClosedByBroker:
        return False
    asking.close()
    return True


def test_a_connection_reads_what_it_wrote_without_waiting(south: RunningBroker) -> None:
    """Declare, bind, publish (mandatory), get, delete, again and again, nothing waited for that need not be."""

    async def run() -> None:
        connection = await aiormq.connect(south.amqp_url)
        channel = await connection.channel(publisher_confirms=False)
        returned: list[DeliveredMessage] = []
        channel.on_return_callbacks.add(returned.append)
        for number in range(40):
            body = b"%d" % number
            await channel.queue_declare("own", durable=True, nowait=True)
            await channel.exchange_declare("own", exchange_type="direct", nowait=True)
            await channel.queue_bind("own", "own", "key", nowait=True)
            await channel.basic_publish(body, exchange="own", routing_key="key", mandatory=True)
            got = await channel.basic_get("own", no_ack=number % 2 == 0)
            assert got.body == body
            assert not got.redelivered
            if number % 2:
                assert got.delivery_tag is not None
                await channel.basic_nack(got.delivery_tag, requeue=True)
                again = await channel.basic_get("own")
                assert (again.body, again.redelivered) == (body, True)
                assert again.delivery_tag is not None
                await channel.basic_ack(again.delivery_tag, wait=False)
            declared = await channel.queue_declare("own", durable=True)
            assert (declared.message_count, declared.consumer_count) == (0, 0)
            await channel.basic_publish(body, exchange="own", routing_key="key", mandatory=True)
            assert (await channel.queue_purge("own")).message_count == 1
            await channel.basic_publish(body, exchange="own", routing_key="key", mandatory=True)
            await channel.queue_delete("own", nowait=True)
            await channel.queue_declare("own", durable=False, nowait=True)  # another one: not the one before
            await channel.exchange_delete("own", nowait=True)
            assert (await channel.queue_delete("own")).message_count == 0
        assert not returned
        await connection.close()

    asyncio.run(run())


def test_many_publishers_and_consumers_on_both_nodes(
    here: BlockingChannel, there: BlockingChannel, north: RunningBroker, south: RunningBroker, name: str
) -> None:
    """Two queues in two partitions under a fanout; two publishers, four consumers: each queue has each message once, in
    the order of its publisher."""
    queues = in_each_partition(name)
    each = 400
    here.exchange_declare(name, "fanout", durable=True)
    for queue in queues:
        here.queue_declare(queue, durable=True)
        here.queue_bind(queue, name)
    catch_up(there)

    async def run() -> None:
        connections = [await aio_pika.connect(node.amqp_url) for node in (north, south)]
        channels = [await connection.channel() for connection in connections]
        taken: dict[tuple[int, str], list[bytes]] = {}
        done = asyncio.Event()

        async def consume(number: int, queue: str) -> None:
            channel = await connections[number].channel()
            await channel.set_qos(20)
            mine = taken[number, queue] = []

            async def on_message(message: Any) -> None:
                assert not message.redelivered
                mine.append(message.body)
                await message.ack()
                if sum(map(len, taken.values())) == 2 * 2 * each:
                    done.set()

            await (await channel.get_queue(queue)).consume(on_message)

        await asyncio.gather(*(consume(number, queue) for number in range(2) for queue in queues))

        async def publish(number: int) -> None:
            to = await channels[number].get_exchange(name)
            for first in range(0, each, 50):
                await asyncio.gather(
                    *(to.publish(aio_pika.Message(b"%d:%d" % (number, n)), "") for n in range(first, first + 50))
                )

        await asyncio.gather(publish(0), publish(1))
        async with asyncio.timeout(SECONDS):
            await done.wait()
        for queue in queues:
            both = taken[0, queue] + taken[1, queue]
            assert len(set(both)) == len(both) == 2 * each
            assert taken[0, queue]
            assert taken[1, queue]
        for mine in taken.values():
            for publisher in (b"0", b"1"):
                numbers = [int(body.split(b":")[1]) for body in mine if body.startswith(publisher)]
                assert numbers == sorted(numbers)
        for connection in connections:
            await connection.close()

    asyncio.run(run())


def test_refusals_are_rabbitmqs(here: BlockingChannel, south: RunningBroker, name: str) -> None:
    where = f"queue '{name}' in vhost '/'"
    refused(404, f"NOT_FOUND - no {where}", south, "queue_declare", name, passive=True)
    refused(404, f"NOT_FOUND - no {where}", south, "basic_get", name)
    refused(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", south, "exchange_declare", name, passive=True)
    here.queue_declare(name, durable=True, arguments={"x-max-length": 5})
    here.exchange_declare(name, "fanout", durable=True)
    refused(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for {where}: received 'false' but current is 'true'",
        south,
        "queue_declare",
        name,
        durable=False,
        arguments={"x-max-length": 5},
    )
    refused(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for {where}: received '6' but current is '5'",
        south,
        "queue_declare",
        name,
        durable=True,
        arguments={"x-max-length": 6},
    )
    refused(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'direct' but"
        " current is 'fanout'",
        south,
        "exchange_declare",
        name,
        "direct",
        durable=True,
    )
    here.basic_publish("", name, b"1", PERSISTENT)
    refused(406, f"PRECONDITION_FAILED - {where} not empty", south, "queue_delete", name, if_empty=True)
    here.basic_consume(name, lambda *_: None, exclusive=True)
    refused(403, f"ACCESS_REFUSED - {where} in exclusive use", south, "basic_consume", name, lambda *_: None)
    refused(406, f"PRECONDITION_FAILED - {where} in use", south, "queue_delete", name, if_unused=True)
    own = f"{name}-own"
    here.queue_declare(own, exclusive=True)
    locked = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{own}' in vhost '/'. It could be originally"
        " declared on another connection or the exclusive property value does not match that of the original"
        " declaration."
    )
    for method in ("queue_declare", "queue_purge", "queue_delete"):
        refused(405, locked, south, method, own)
    refused(405, locked, south, "basic_consume", own, lambda *_: None)


ANSWERS = {"ChannelPreconditionFailed": 406, "ChannelLockedResource": 405, "ChannelAccessRefused": 403}


def test_two_nodes_are_asked_for_the_same_at_the_same_time(north: RunningBroker, south: RunningBroker) -> None:
    """Whose request comes first in the log has it; the other is told as if it had come later."""

    async def asked(connection: Any, what: str, name: str, options: dict[str, Any]) -> int:
        channel = await connection.channel()
        try:
            await getattr(channel, what)(name, **options)
        except aiormq.exceptions.ChannelClosed as refusal:
            return ANSWERS[type(refusal).__name__]
        return 200

    async def ignore(_: Any) -> None: ...

    async def run() -> None:
        connections = [await aiormq.connect(node.amqp_url) for node in (north, south)]
        consume: dict[str, Any] = {"consumer_callback": ignore, "exclusive": True}
        races: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
            ("queue_declare", 406, {"durable": True}, {"durable": False}),
            ("queue_declare", 405, {"exclusive": True}, {"exclusive": True}),
            ("exchange_declare", 406, {"exchange_type": "fanout"}, {"exchange_type": "direct"}),
            ("basic_consume", 403, consume, consume),
        ]
        for round in range(10):
            for number, (what, code, *both) in enumerate(races):
                name = f"race-{round}-{number}"
                if what == "basic_consume":
                    for connection in connections:
                        await (await connection.channel()).queue_declare(name)
                answers = await asyncio.gather(
                    *(
                        asked(connection, what, name, options)
                        for connection, options in zip(connections, both, strict=True)
                    )
                )
                assert sorted(answers) == [200, code], (what, answers)
        for connection in connections:
            await connection.close()

    asyncio.run(run())


def test_a_consumer_hears_that_its_queue_was_deleted_on_the_other_node(
    here: BlockingChannel, there: BlockingChannel, name: str
) -> None:
    here.queue_declare(name, durable=True)
    catch_up(there)
    cancelled: list[str] = []
    there.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = there.basic_consume(name, lambda *_: None)
    until(lambda: counts(here, name) == (0, 1), "the consumer is not seen")
    here.queue_delete(name)
    until(lambda: there.connection.process_data_events(0.05) or cancelled, "basic.cancel never came")
    assert cancelled == [tag]


def test_policies_and_limits(here: BlockingChannel, there: BlockingChannel, north: RunningBroker, name: str) -> None:
    there.queue_declare(name, durable=True)
    catch_up(here)
    with api_client(north) as ours:
        policy = {"pattern": f"^{name}$", "definition": {"max-length": 2, "overflow": "reject-publish"}}
        assert ours.put(f"/policies/%2F/{name}", json=policy).status_code == 201
        catch_up(there)
        for number in range(2):
            there.basic_publish("", name, b"%d" % number, PERSISTENT)
        for channel in (here, there):
            with pytest.raises(NackError):
                channel.basic_publish("", name, b"2", PERSISTENT)
        policy["definition"] = {"max-length": 2, "overflow": "drop-head"}
        assert ours.put(f"/policies/%2F/{name}", json=policy).status_code == 204
        catch_up(there)
        there.basic_publish("", name, b"3", PERSISTENT)
        assert [body for body, *_ in take(here, name, 2)] == [b"1", b"3"]
        assert ours.delete(f"/policies/%2F/{name}").status_code == 204
        catch_up(there)
        for _ in range(3):
            there.basic_publish("", name, b"", PERSISTENT)
        assert counts(there, name) == (3, 0)


def test_users_permissions_and_vhosts(north: RunningBroker, south: RunningBroker) -> None:
    with api_client(north) as ours, api_client(south) as theirs:
        assert ours.put("/users/ann", json={"password": "secret", "tags": ""}).status_code == 201
        until(lambda: theirs.get("/users/ann").status_code == 200, "the other node knows no ann")
        with pytest.raises(ProbableAccessDeniedError):
            connect(south, "ann", "secret")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        assert ours.put("/permissions/%2F/ann", json=everything).status_code == 201
        until(lambda: theirs.get("/permissions/%2F/ann").status_code == 200, "ann may not enter")
        with connect(south, "ann", "secret") as connection:
            connection.channel().queue_declare("anns", durable=True)
        assert ours.put("/permissions/%2F/ann", json=everything | {"configure": "^$"}).status_code == 204
        until(lambda: theirs.get("/permissions/%2F/ann").json()["configure"] == "^$", "ann may configure")
        with connect(south, "ann", "secret") as connection, pytest.raises(ChannelClosedByBroker, match="REFUSED"):
            connection.channel().queue_declare("anns-2", durable=True)
        ended_by(lambda: ours.delete("/users/ann"), connect(south, "ann", "secret"), "user 'ann' is deleted")
        until(lambda: theirs.get("/users/ann").status_code == 404, "ann is still there")

        assert ours.put("/vhosts/moon").status_code == 201
        until(lambda: theirs.get("/permissions/moon/guest").status_code == 200, "the vhost is not seen")
        connection = connect(south, vhost="moon")
        connection.channel().queue_declare("there", durable=True)
        ended_by(lambda: ours.delete("/vhosts/moon"), connection, "vhost 'moon' is deleted")
        for client in (ours, theirs):
            until(lambda client: client.get("/vhosts/moon").status_code == 404, "the vhost is still there", client)
            assert not [each for each in client.get("/queues").json() if each["vhost"] == "moon"]


def ended_by(what: Any, connection: pika.BlockingConnection, reason: str) -> None:
    """`what` is asked of one node, and the other closes this connection."""
    assert what().status_code == 204
    with pytest.raises(ConnectionClosedByBroker) as ended:
        until(lambda: connection.process_data_events(0.05), "it is not closed")
    assert (ended.value.reply_code, ended.value.reply_text) == (320, f"CONNECTION_FORCED - {reason}")


def test_exclusive_and_auto_delete_queues(
    here: BlockingChannel, there: BlockingChannel, north: RunningBroker, name: str
) -> None:
    connection = connect(north)
    own = connection.channel().queue_declare("", exclusive=True).method.queue
    catch_up(there)
    there.basic_publish("", own, b"", PERSISTENT, mandatory=True)
    connection.close()
    until(lambda: gone(there, own), "the exclusive queue outlived its connection")
    here.queue_declare(name, auto_delete=True)
    here.exchange_declare(f"{name}-x", "fanout", auto_delete=True)
    here.queue_bind(name, f"{name}-x")
    catch_up(there)
    tag = there.basic_consume(name, lambda *_: None)
    catch_up(here)
    assert counts(here, name) == (0, 1)
    there.basic_cancel(tag)
    until(lambda: gone(here, name), "the auto-delete queue outlived its last consumer")
    until(
        lambda: not answers(here, "exchange_declare", f"{name}-x"), "the auto-delete exchange outlived its last binding"
    )


def test_a_service_that_appends_to_kafka_reaches_consumers(
    nodes: Nodes, here: BlockingChannel, there: BlockingChannel, north: RunningBroker, south: RunningBroker, name: str
) -> None:
    """And nonsense is quarantined by all nodes alike."""
    here.queue_declare(name, durable=True)
    catch_up(there)
    publisher = Publisher("billing", nodes.prefix)
    producer = ordered_producer(nodes.kafka.bootstrap, partitioner="murmur2")
    for number in range(50):
        record = publisher.record("/", name, b"%d" % number, headers={"try": 1})
        producer.produce(record.topic, key=record.key, value=record.value)
        if number % 10 == 0:
            producer.produce(record.topic, key=record.key, value=b"nonsense %d" % number)
    record = publisher.record("/", f"no {name}", b"")
    producer.produce(record.topic, key=record.key, value=record.value)
    assert producer.flush(SECONDS) == 0
    taken = take(there, name, 50)
    assert [(int(body), headers) for body, _, headers in taken] == [(n, {"try": 1}) for n in range(50)]
    catch_up(here)
    with api_client(north) as ours, api_client(south) as theirs:
        listed = ours.get("/quarantine").json()
        assert theirs.get("/quarantine").json() == listed
    nonsense = [each for each in listed if each["event"] is None and each["partition"] != "metadata-0"]
    assert [each["reason"] for each in nonsense] == [
        f"byte 0 of {length}: not a single-object encoding, which begins with C3 01" for length in (10, 11, 11, 11, 11)
    ]
    nowhere = [each for each in listed if each["reason"] == f"no queue 'no {name}' in vhost '/'"]
    assert [each["event"] for each in nowhere] == ["Published"]


def test_nonsense_in_the_metadata_topic_is_quarantined_by_all_nodes_alike(
    nodes: Nodes, here: BlockingChannel, there: BlockingChannel, north: RunningBroker, south: RunningBroker, name: str
) -> None:
    """And whatever is asked of the metadata is answered."""
    listing = "/quarantine?partition=metadata-0"
    encoder = Encoder()
    events: list[Event] = [
        ParameterSet("/", "a", name, "no JSON"),
        GlobalParameterSet(name, "no JSON"),
        PolicySet("/", name, ".*", "no JSON", 0, "all"),
        VhostCreated("/", "", (), name),
    ]
    producer = ordered_producer(nodes.kafka.bootstrap)
    for value in (b"garbage", *(encoder.encode(encoder.prefix(0, BROKER), event) for event in events)):
        producer.produce(f"{nodes.prefix}.metadata", key=b"", value=value)
    assert producer.flush(SECONDS) == 0
    for channel, node in ((here, north), (there, south)):
        with api_client(node) as asked:
            until(lambda asked: len(asked.get(listing).json()) >= 1 + len(events), "it is not listed", asked)
            listed = asked.get(listing).json()
            assert [each["event"] for each in listed] == [None, *(type(event).__name__ for event in events)]
            for path in ("definitions", "parameters", "global-parameters", "policies", "vhosts"):
                assert asked.get(f"/{path}").status_code == 200
        channel.queue_declare(f"{name} at {node.http_url}", durable=True)
    with api_client(north) as ours, api_client(south) as theirs:
        assert ours.get("/quarantine").json() == theirs.get("/quarantine").json()
