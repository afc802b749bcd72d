"""Clients of a whole broker without sockets: frames in, the broker's answers out."""

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker.broker import Broker
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method
from tests.support.memory_nodes import settled


class WireClient:
    """A connection, and what the broker says to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = Connection(broker, "client:1", True, IdleSocket())

    async def said(self, frames: bytes) -> list[Said]:
        """Send these frames, and return the broker's answers before anything else arrives."""
        self.connection.receive(frames)
        self.broker.turns.end()
        await settled()
        return decoded(b"".join(self.connection.take_output()))


async def opened(broker: Broker) -> WireClient:
    """Return a client with the channels 1, 2 and 3."""
    client = WireClient(broker)
    said = await client.said(HANDSHAKE + b"".join(method(channel, "Channel.Open") for channel in (1, 2, 3)))
    while not said or said[-1].name != "Channel.OpenOk" or said[-1].channel != 3:  # a password takes its time
        said += await client.said(b"")
    return client
