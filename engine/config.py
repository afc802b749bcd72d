"""Where and how a broker runs."""

import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rewindmq import __version__
from rewindmq.engine.runtime.watermarks import DISK_FREE_LIMIT, MEMORY_WATERMARK, Limit
from rewindmq.engine.tls import TlsListener
from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13

VERSION = __version__
# RabbitMQ's version whose semantics and management API these are: clients and tools look at it to know what they may
# ask for (docs/differences.md).
RABBITMQ_VERSION = "3.13.7"
MAX_MESSAGE_SIZE = 536_870_912  # as far as `max_message_size` goes, as in RabbitMQ
EVERYWHERE = ("", "0.0.0.0", "::")
LOCALHOST = "localhost"
BOTH_FAMILIES = {LOCALHOST: ("127.0.0.1", "::1"), "": ("0.0.0.0", "::"), "::": ("0.0.0.0", "::")}


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes are bytes, times are as their names say."""

    data: Path
    host: str = LOCALHOST
    amqp_port: int = 5672
    http_port: int | None = 15672  # None: over TLS only
    https_port: int | None = None  # with `tls`
    partitions: int | None = None  # of the queue log, fixed when the directory is made; None: as it is, 2 for a new one
    node: str = "rewindmq@localhost"
    max_message_size: int = 134_217_728  # as RabbitMQ 3.13
    frame_max: int = 131_072
    channel_max: int = 2_047
    heartbeat_seconds: int = 60
    semantics: str = (
        RABBITMQ_3_13.name
    )  # the profile of queues that ask for none (projections/machine/rules/profile.py)
    tls: TlsListener | None = None
    loopback_users: tuple[str, ...] = ("guest",)  # they may connect from this machine only
    vm_memory_high_watermark: Limit = MEMORY_WATERMARK  # memory above which publishers are held back, as RabbitMQ's
    disk_free_limit: Limit = DISK_FREE_LIMIT  # free disk space below which they are, too
    consumer_timeout_ms: int = 1_800_000  # how long a delivery may stay unacked; a queue may say less or more
    segment_bytes: int = 268_435_456
    snapshot_events: int = 1_000_000
    subject_header: str = ""  # a header whose value names whose message it is: under whose key the body is encrypted
    keys: Path | None = None  # directory of these keys; None: `keys` in `data`. Nodes on one Kafka share it
    load_definitions: Path | None = None  # imported at each start, a file or a directory; no user `guest` is made then

    # With `kafka` the log is there, and any number of nodes share it; each needs a `node` name and a `data` of its own.
    kafka: str | None = None  # bootstrap servers, "host:port,host:port"; None: the embedded log, in `data`
    kafka_prefix: str = "rewindmq"  # of the topics' names
    kafka_replication: int | None = None  # of new topics; None: 3, or as many as Kafka has brokers
    kafka_settings: tuple[tuple[str, str], ...] = ()  # more of librdkafka's, for security: ("sasl.username", "x") ...
    node_timeout_ms: int = 10_000  # a node that was not heard of for so long is lost

    log_level: str = "info"  # of what is logged to stderr (logging_setup.py)
    prometheus_port: int | None = None  # /metrics there, too (RabbitMQ's is 15692); None: with the API only

    @property
    def address(self) -> str:
        """Of the AMQP listener, as others may reach it: one that listens everywhere is known by the machine's name."""
        host = socket.gethostname() if self.host in EVERYWHERE else self.addresses[0]
        return f"{bracketed(host)}:{self.amqp_port}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to listen on. `localhost` and `::` stand for one of IPv4 and one of IPv6, where the machine has
        IPv6."""
        both = BOTH_FAMILIES.get(self.host)
        if both is None:
            return (self.host,)
        return both if has_ipv6() else both[:1]

    @property
    def listeners(self) -> list[tuple[str, str, int]]:
        """(protocol by RabbitMQ's name, address, port)"""
        ports = {
            "amqp": self.amqp_port,
            "amqp/ssl": None if self.tls is None else self.tls.port,
            "http": self.http_port,
            "https": self.https_port,
            "http/prometheus": self.prometheus_port,
        }
        return [
            (protocol, address, port)
            for protocol, port in ports.items()
            if port is not None
            for address in self.addresses
        ]

    def connection_name(self, peer: str) -> str:
        """Both ends of a connection, as RabbitMQ names it. `peer`: address:port, or both ends already."""
        if " -> " in peer:
            return peer
        address = self.addresses[-1 if peer.count(":") > 1 else 0]
        return f"{peer} -> {bracketed(address)}:{self.amqp_port}"

    @property
    def keys_directory(self) -> Path:
        return self.data / "keys" if self.keys is None else self.keys

    @property
    def cluster_name(self) -> str:
        """Of all nodes on the same log."""
        return self.node if self.kafka is None else self.kafka_prefix

    def topic_of(self, partition: str) -> str | None:
        """Kafka's name for where it is; None for the embedded log."""
        return None if self.kafka is None else f"{self.kafka_prefix}.{partition.rpartition('-')[0]}"


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


@cache
def has_ipv6() -> bool:
    """Whether this machine has IPv6 on loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
