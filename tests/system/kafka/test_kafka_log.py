"""The log in Kafka, while Kafka is well: order, offsets, times, duties, and what topics have to be."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.log import KafkaLog, SharedKafkaPartition
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.engine.log.shared_contract import RecordTooLarge
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.following import SECONDS, Following
from tests.support.kafka.producers import ordered_producer
from tests.support.kafka.topic_settings import change_setting, settings_of

PARTITIONS = ("metadata-0", "queues-0", "queues-1")


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def log(kafka: KafkaCluster, prefix: str) -> Iterator[KafkaLog]:
    opened = KafkaLog.open(kafka.bootstrap, prefix)
    yield opened
    opened.close()


def partitions_of(log: KafkaLog) -> list[SharedKafkaPartition]:
    return [log.metadata, *log.queues]


def read_all(partition: KafkaPartition) -> tuple[list[int], list[int], list[bytes]]:
    blocks = list(partition.read())
    offsets = [block.first_offset + at for block in blocks for at in range(len(block.records))]
    times = [time for block in blocks for time in block.timestamps_ms or ()]
    return offsets, times, [record for block in blocks for record in block.records]


def test_what_is_appended_comes_back_in_order_and_is_read_alike(log: KafkaLog) -> None:
    count = 20_000
    sizes = (0, 1, 10, 100, 1_000)
    values = [str(number).encode().ljust(sizes[number % 5], b".") for number in range(count)]

    async def run() -> Following:
        following = Following(log)
        for number, value in enumerate(values):
            log.queues[number % 2].append(b"/vhost/queue", value)
            if number % 100 == 0:
                log.flush()
                await asyncio.sleep(0)
        await following.until_read({"queues-0": count // 2, "queues-1": count // 2})
        return following

    following = asyncio.run(run())
    for number, partition in enumerate(log.queues):
        name = partition.name
        assert following.values[name] == values[number::2]
        assert following.offsets[name] == list(range(count // 2))
        assert following.times[name] == sorted(following.times[name])
        assert read_all(partition) == (following.offsets[name], following.times[name], following.values[name])
    assert following.values["metadata-0"] == []
    assert following.failures == []


def test_a_client_that_reads_a_part_again_does_not_show_it(log: KafkaLog) -> None:
    """librdkafka has done so after a leader's election; a fold must have each record once."""

    async def run() -> Following:
        following = Following(log)
        for number in range(100):
            log.queues[0].append(b"", b"%d" % number)
        await following.until_read({"queues-0": 100})
        assert log._following is not None
        log._following._consumer.seek(TopicPartition(log.queues[0].topic, 0, 40))
        log.queues[0].append(b"", b"100")
        await following.until_read({"queues-0": 101})
        return following

    following = asyncio.run(run())
    assert following.offsets["queues-0"] == list(range(101))
    assert following.values["queues-0"] == [b"%d" % number for number in range(101)]


def test_one_record_is_asked_for_and_not_waited_for_for_long(kafka: KafkaCluster, prefix: str) -> None:
    with kafka.proxied() as line:
        log = KafkaLog.open(line.bootstrap, prefix)
        for number in range(3):
            log.queues[1].append(b"", b"%d" % number)
        log.producer.flush()
        assert [log.queues[1].record(offset, 60.0) for offset in range(3)] == [b"0", b"1", b"2"]
        line.blackhole()
        with pytest.raises(LogError, match="queues-1 cannot be read: no answer within 1 seconds"):
            log.queues[1].record(1, 1.0)
        line.resume()
        assert log.queues[1].record(1, 60.0) == b"1"
        log.close()


def test_two_nodes_see_the_same_order(kafka: KafkaCluster, log: KafkaLog, prefix: str) -> None:
    """S-117."""
    count = 3_000
    other = KafkaLog.open(kafka.bootstrap, prefix)

    async def run() -> list[Following]:
        nodes = [Following(log), Following(other)]
        for number in range(count):
            for at, node in enumerate(nodes):
                for partition in partitions_of(node.log):
                    partition.append(b"", b"%d %d" % (at, number))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        for node in nodes:
            await node.until_read(dict.fromkeys(PARTITIONS, 2 * count))
        return nodes

    one, two = asyncio.run(run())
    other.close()
    assert (one.values, one.offsets, one.times) == (two.values, two.offsets, two.times)
    for name in PARTITIONS:
        for at in (0, 1):
            own = [value for value in one.values[name] if value.startswith(b"%d " % at)]
            assert own == [b"%d %d" % (at, number) for number in range(count)]


def test_what_the_producer_has_no_room_for_waits_in_order(kafka: KafkaCluster, prefix: str) -> None:
    log = KafkaLog.open(kafka.bootstrap, prefix, settings={"queue.buffering.max.messages": "10"})

    async def run() -> Following:
        following = Following(log)
        for number in range(2_000):
            log.queues[number % 2].append(b"", b"%d" % number)
        assert log.backlog
        await following.until_read({"queues-0": 1_000, "queues-1": 1_000})
        return following

    following = asyncio.run(run())
    assert following.values["queues-0"] == [b"%d" % number for number in range(0, 2_000, 2)]
    assert following.values["queues-1"] == [b"%d" % number for number in range(1, 2_000, 2)]
    for number in range(50):
        log.metadata.append(b"", b"%d" % number)
    log.close()  # waits for what has no room too
    assert read_all(log.metadata)[2] == [b"%d" % number for number in range(50)]


def test_a_loop_that_is_busy_gets_everything_later(log: KafkaLog) -> None:
    """While nobody takes what was read back, little more is read."""

    async def run() -> Following:
        following = Following(log)
        await following.until(lambda: bool(following.owned))
        for number in range(30_000):
            log.queues[0].append(b"", b"%d" % number)
        time.sleep(2.5)  # in the loop, on purpose
        await following.until_read({"queues-0": 30_000})
        return following

    following = asyncio.run(run())
    assert following.values["queues-0"] == [b"%d" % number for number in range(30_000)]
    assert following.failures == []


def test_a_node_follows_from_where_it_is_told_and_heartbeats_from_now(
    kafka: KafkaCluster, log: KafkaLog, prefix: str
) -> None:
    async def first() -> None:
        following = Following(log)
        for number in range(10):
            log.queues[0].append(b"", b"%d" % number)
            log.nodes.append(b"", b"old")
        await following.until_read({"queues-0": 10, "nodes-0": 10})

    asyncio.run(first())
    later = KafkaLog.open(kafka.bootstrap, prefix)

    async def second() -> Following:
        following = Following(later, {"queues-0": 7})
        later.nodes.append(b"", b"new")
        await following.until_read({"queues-0": 3, "nodes-0": 1})
        return following

    following = asyncio.run(second())
    later.close()
    assert following.offsets["queues-0"] == [7, 8, 9]
    assert following.values["nodes-0"] == [b"new"]


def test_duties_are_shared_and_taken_over(kafka: KafkaCluster, prefix: str) -> None:
    everything = frozenset(f"queues-{number}" for number in range(4))

    async def run() -> None:
        one = Following(KafkaLog.open(kafka.bootstrap, prefix, partitions=4))
        await one.until(lambda: one.owned == everything)
        two = Following(KafkaLog.open(kafka.bootstrap, prefix))
        await two.until(lambda: len(two.owned) == 2)
        await one.until(lambda: one.owned == everything - two.owned)
        await asyncio.to_thread(one.log.close)
        await two.until(lambda: two.owned == everything)
        await asyncio.to_thread(two.log.close)

    asyncio.run(run())


def test_transactions_of_services_leave_gaps(kafka: KafkaCluster, log: KafkaLog) -> None:
    """A marker takes an offset where a transaction ended. Records count when they are in the log, given up or not."""
    service = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": log.queues[0].topic})
    service.init_transactions(SECONDS)
    for number, end in enumerate((service.commit_transaction, service.abort_transaction, service.commit_transaction)):
        service.begin_transaction()
        for at in range(3):
            service.produce(log.queues[0].topic, b"%d %d" % (number, at), partition=0)
        assert service.flush(SECONDS) == 0
        end(SECONDS)
    queue = log.queues[0]
    deadline = time.monotonic() + SECONDS
    while queue.next_offset < 12 and time.monotonic() < deadline:  # Kafka writes the last marker after its answer
        time.sleep(0.05)
    assert (queue.start_offset, queue.next_offset) == (0, 12)
    blocks = list(queue.read())
    assert [(block.first_offset, len(block.records)) for block in blocks] == [(0, 3), (4, 3), (8, 3)]
    assert [block.records[0] for block in blocks] == [b"0 0", b"1 0", b"2 0"]
    assert [list(queue.read(start, end)) for start, end in ((3, 4), (11, 12), (11, None), (12, None))] == [[]] * 4
    assert [block.first_offset for block in queue.read(6, 9)] == [6, 8]

    async def run() -> Following:
        following = Following(log)
        service.begin_transaction()
        service.produce(queue.topic, b"open", partition=0)
        queue.append(b"", b"not held up")
        await following.until_read({"queues-0": 11})
        return following

    following = asyncio.run(run())
    service.abort_transaction(SECONDS)
    assert following.offsets["queues-0"] == [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13]
    assert set(following.values["queues-0"][-2:]) == {b"open", b"not held up"}


def test_a_record_without_a_value_is_empty(kafka: KafkaCluster, log: KafkaLog) -> None:
    service = ordered_producer(kafka.bootstrap)
    service.produce(log.queues[0].topic, None, b"key", partition=0)
    assert service.flush(SECONDS) == 0

    async def run() -> Following:
        following = Following(log)
        await following.until_read({"queues-0": 1})
        return following

    assert asyncio.run(run()).values["queues-0"] == read_all(log.queues[0])[2] == [b""]


def test_topics_are_made_for_ever_by_however_many_nodes_at_once(kafka: KafkaCluster, prefix: str) -> None:
    opened: list[KafkaLog] = []
    threads = [threading.Thread(target=lambda: opened.append(KafkaLog.open(kafka.bootstrap, prefix))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    assert len({log.identity for log in opened}) == 1
    for log in opened:
        log.close()
    assert settings_of(kafka, f"{prefix}.queues") == settings_of(kafka, f"{prefix}.metadata")
    queues = settings_of(kafka, f"{prefix}.queues")
    assert [queues[key] for key in ("message.timestamp.type", "retention.ms", "retention.bytes", "cleanup.policy")] == [
        "LogAppendTime",
        "-1",
        "-1",
        "delete",
    ]
    assert queues["unclean.leader.election.enable"] == "false"
    assert settings_of(kafka, f"{prefix}.nodes")["retention.ms"] == "3600000"
    assert [len(log.queues) for log in opened] == [2] * 4


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("queues", "retention.ms", "604800000"),
        ("metadata", "cleanup.policy", "compact"),
        ("queues", "message.timestamp.type", "CreateTime"),
        ("nodes", "message.timestamp.type", "CreateTime"),
    ],
)
def test_a_topic_that_would_lose_history_is_refused(
    kafka: KafkaCluster, log: KafkaLog, prefix: str, topic: str, key: str, value: str
) -> None:
    change_setting(kafka, f"{prefix}.{topic}", key, value)
    with pytest.raises(LogError, match=f"{prefix}.{topic} has {key}={value}, and has to have .*kafka-configs.sh"):
        KafkaLog.open(kafka.bootstrap, prefix)


def test_the_number_of_partitions_stays(kafka: KafkaCluster, log: KafkaLog, prefix: str) -> None:
    with pytest.raises(LogError, match=r"queues has 2 partitions, and 3 are asked for"):
        KafkaLog.open(kafka.bootstrap, prefix, partitions=3)


def test_a_tool_that_reads_makes_no_topics(kafka: KafkaCluster, log: KafkaLog, prefix: str) -> None:
    reader = KafkaLogReader(kafka.bootstrap, prefix)
    assert reader.identity == log.identity
    assert [reader.metadata.name, *(queue.name for queue in reader.queues)] == list(PARTITIONS)
    nobody = f"{prefix}-nobody"
    with pytest.raises(LogError, match=f"no topic {nobody}.metadata"):
        _ = KafkaLogReader(kafka.bootstrap, nobody).queues
    with pytest.raises(LogError):
        list(KafkaLogReader(kafka.bootstrap, nobody).metadata.read())
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=SECONDS).topics
    assert not [topic for topic in topics if topic.startswith(nobody)]


def test_a_record_that_kafka_would_refuse_is_refused_at_once(log: KafkaLog) -> None:
    """The largest is taken, and comes back."""
    with pytest.raises(RecordTooLarge, match=r"larger than the \d+ that the topic .*max\.message\.bytes"):
        log.queues[0].append(b"key", bytes(log.max_record_bytes))

    async def run() -> Following:
        following = Following(log)
        log.queues[0].append(b"key", bytes(log.max_record_bytes - 3))
        await following.until_read({"queues-0": 1})
        return following

    following = asyncio.run(run())
    assert [len(value) for value in following.values["queues-0"]] == [log.max_record_bytes - 3]
    assert [len(value) for value in read_all(log.queues[0])[2]] == [log.max_record_bytes - 3]


@pytest.mark.long
def test_a_node_whose_topics_were_deleted_fails(kafka: KafkaCluster, log: KafkaLog) -> None:
    async def run() -> Following:
        following = Following(log)
        log.queues[0].append(b"", b"before")
        await following.until_read({"queues-0": 1})
        delete(kafka, log.queues[0].topic)
        log.queues[0].append(b"", b"after")
        await following.until(lambda: bool(following.failures))
        return following

    following = asyncio.run(run())
    assert log.queues[0].topic in str(following.failures[0])
    with pytest.raises(LogError):
        log.close()


def test_a_node_whose_topics_were_made_anew_fails(kafka: KafkaCluster, log: KafkaLog, prefix: str) -> None:
    async def run() -> Following:
        following = Following(log)
        for number in range(10):
            log.queues[0].append(b"", b"%d" % number)
        await following.until_read({"queues-0": 10})
        delete(kafka, log.queues[0].topic)
        anew = await asyncio.to_thread(KafkaLog.open, kafka.bootstrap, prefix)
        assert anew.identity != log.identity
        anew.close()
        await following.until(lambda: bool(following.failures))
        return following

    assert "Kafka: the " in str(asyncio.run(run()).failures[0])


def test_when_an_event_is_refused_none_follows_it(kafka: KafkaCluster, log: KafkaLog) -> None:
    """The order would have a hole: the node fails, and has to begin again from what is in the log."""
    change_setting(kafka, log.queues[0].topic, "max.message.bytes", "100000")

    async def run() -> Following:
        following = Following(log)
        for number in range(1_000):
            log.queues[0].append(b"", b"%d" % number + bytes(200_000 if number == 500 else 0))
        await following.until(lambda: bool(following.failures))
        return following

    following = asyncio.run(run())
    assert "Message size too large" in str(following.failures[0])
    with pytest.raises(LogError, match="Message size too large"):
        log.close()
    values = read_all(log.queues[0])[2]
    assert values == [b"%d" % number for number in range(len(values))]
    assert len(values) <= 500


def test_a_node_that_is_ahead_of_the_log_fails(log: KafkaLog) -> None:
    """Its state is of another history, or the log lost its end."""

    async def run() -> Following:
        following = Following(log, {"queues-1": 5})
        await following.until(lambda: bool(following.failures))
        return following

    assert "place in the history is gone" in str(asyncio.run(run()).failures[0])


def delete(kafka: KafkaCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.delete_topics([topic]).values()
    future.result(SECONDS)
