"""A commit on a full disk: its publishes wait for room, and acks do not (docs/operators/full-disk.md)."""

import asyncio

from tests.support.amqp_double import DoubleBroker, Unhindered
from tests.support.amqp_wire import Wire, method, publish


class FullDisk(Unhindered):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def has_room(self, size: int) -> bool:
        self.asked.append(size)
        return False


def committed(*frames: bytes) -> tuple[list[str], list[int]]:
    """Commit these frames in a transaction of queues in three partitions. Return the answers and the room requested."""

    async def run() -> tuple[list[str], list[int]]:
        broker = DoubleBroker(partitions=3)
        disk = FullDisk()
        broker.keeper.flow = disk
        wire = Wire(broker)
        for queue in ("a", "b", "c"):
            wire.ask(1, "Queue.Declare", queue=queue)
            wire.ask(1, "Queue.Bind", queue=queue, exchange="amq.topic", routing_key="k")
        wire.send(publish(1, "", "a", b"m"), method(1, "Basic.Consume", queue="a"), method(1, "Tx.Select"))
        said = wire.send(*frames, method(1, "Tx.Commit"))
        for _ in range(5):
            await asyncio.sleep(0)
            broker.turns.end()
        return [each.name for each in said + wire.read()], disk.asked

    return asyncio.run(run())


def test_acks_and_small_messages_wait_for_no_room() -> None:
    ack, small = method(1, "Basic.Ack", delivery_tag=1), publish(1, "amq.topic", "k", b"small")
    for frames in ((ack,), (ack, small)):
        said, asked = committed(*frames)
        assert said[-1] == "Tx.CommitOk"
        assert asked == []


def test_room_is_needed_in_each_partition_that_logs_a_message() -> None:
    said, asked = committed(*(publish(1, "amq.topic", "k", bytes(100_000)) for _ in range(5)))
    assert "Tx.CommitOk" not in said
    assert set(asked) == {3 * 500_000}
