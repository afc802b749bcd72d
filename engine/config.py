"""The configuration of a broker: its place, its ports and its limits."""

import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

from rewindmq import __version__
from rewindmq.engine.host.proxy_protocol import Balancers
from rewindmq.engine.host.watermarks import DISK_FREE_LIMIT, MEMORY_WATERMARK, Limit
from rewindmq.engine.identity.settings import TokenSettings
from rewindmq.engine.tls import TlsListener
from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13

VERSION = __version__
# The broker has the semantics and the management API of this version of RabbitMQ. Clients and tools read the version to
# learn which features they may use (docs/differences.md).
RABBITMQ_VERSION = "3.13.7"
MAX_MESSAGE_SIZE = 536_870_912  # the largest `max_message_size`, as in RabbitMQ
EVERYWHERE = ("", "0.0.0.0", "::")
LOCALHOST = "localhost"
# Acts for which --require-reason may ask. Each operation of the HTTP API names its own (`operation`).
Act = Literal[
    "purge",
    "delete",
    "policies",
    "permissions",
    "users",
    "restore",
    "erase",
    "pause",
    "move",
    "close_connection",
    "import",
]
ACTS: Final = get_args(Act)
EVERY_ACT: Final = "all"  # ... that can have a reason, so not a purge or a deletion by AMQP
BOTH_FAMILIES = {LOCALHOST: ("127.0.0.1", "::1"), "": ("0.0.0.0", "::"), "::": ("0.0.0.0", "::")}


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """The settings of the archiver beside the broker."""

    url: str | None = None  # of the archive; None: nothing is archived
    segment_age_ms: int | None = None  # a segment that is older is closed; None: by its size alone
    lag_ms: int = 60_000  # the archiver looks so often
    keep_local: str = ""  # the limit of archived segments here (engine/keeping/local_limits.py); empty: none

    @property
    def allowed_lag_ms(self) -> int:
        """The greatest age that a record may reach before it is archived."""
        return self.lag_ms + (self.segment_age_ms or 0)


@dataclass(frozen=True, slots=True)
class VaultPlace:
    """A transit engine of a HashiCorp Vault or an OpenBao. `mount`: its path. `token_file`: holds a token for it. `ca`:
    a file with the authority of its server; "": those that the system trusts."""

    url: str
    mount: str
    token_file: str
    namespace: str = ""
    ca: str = ""

    @property
    def engine(self) -> tuple[str, str, str]:
        """URL, namespace and path: no other engine has the same."""
        return self.url, self.namespace, self.mount


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one broker.

    Sizes are in bytes. A time's unit is in its name."""

    data: Path
    host: str = LOCALHOST
    amqp_port: int = 5672
    http_port: int | None = 15672  # None: HTTP over TLS only
    https_port: int | None = None  # with `tls`
    partitions: int | None = None  # of the queue log; a directory keeps its first number; None: that number, 2 if new
    node: str = "rewindmq@localhost"
    max_message_size: int = 134_217_728  # as RabbitMQ 3.13
    frame_max: int = 131_072
    channel_max: int = 2_047
    heartbeat_seconds: int = 60
    semantics: str = (
        RABBITMQ_3_13.name
    )  # the profile of queues that ask for none (projections/machine/rules/profile.py)
    tls: TlsListener | None = None
    tokens: TokenSettings | None = None  # of an identity provider; None: users log in with passwords only
    loopback_users: tuple[str, ...] = ("guest",)  # these users may connect from this machine only
    vm_memory_high_watermark: Limit = MEMORY_WATERMARK  # more used memory than this blocks publishers
    disk_free_limit: Limit = DISK_FREE_LIMIT  # less free disk space than this blocks publishers
    consumer_timeout_ms: int = 1_800_000  # how long a delivery may stay unacked; a queue's own setting wins
    segment_bytes: int = 268_435_456
    commit_interval_ms: int = 5  # between two group commits, while nobody waits for them (commit.py)
    keep_history_ms: int | None = None  # older history is trimmed (keeping/keep_history.py); None: all is kept
    find_index_ms: int | None = None  # ids of younger messages are in an index (rewind/id_index.py); None: of none
    snapshot_events: int = 1_000_000
    metadata_snapshot_events: int = 10_000
    waypoint_events: int = 10_000  # between two waypoints of a partition (partition/waypoint_writer.py)
    subject_header: str = ""  # the header with the subject of a message: the subject's key encrypts the body
    keys: Path | None = None  # directory of keys; None: `keys` in `data`. Nodes on one Kafka share it
    vault: VaultPlace | None = None  # keys are sealed by this Vault; None: the directory says it, or has plain keys
    keep_bodies_days: int | None = None  # each body is encrypted under a key of its day; None: only those of subjects
    load_definitions: Path | None = None  # a file or directory, imported at each start; then there is no first user
    default_user: str = "guest"  # the first user, which the first start makes
    default_pass: str = field(default="guest", repr=False)
    archive: ArchiveConfig = ArchiveConfig()
    confirm_after: str = "sync"  # or "follower": confirms wait until the followers have synced (broker/followers.py)
    follow: str | None = None  # the URL of the leader whose log this node copies (engine/standby); None: of none
    leader_user: str = "guest"
    leader_pass: str = field(default="guest", repr=False)
    leader_ca: Path | None = None
    accept_lost_end: bool = False  # start without records that the log has lost (embedded/beside_log.py)
    require_reason: tuple[str, ...] = ()  # acts for which a client must say why; "all": those that can, so not AMQP's
    read_only: bool = False  # serve the history, and write nothing at all (embedded/read_only.py)

    # With `kafka` the log is in Kafka, and any number of nodes share it. Each node needs its own `node` and `data`.
    kafka: str | None = None  # bootstrap servers, "host:port,host:port"; None: the embedded log, in `data`
    kafka_prefix: str = "rewindmq"  # prefix of the topics' names
    kafka_replication: int | None = None  # of new topics; None: 3, or as many as Kafka has brokers
    kafka_settings: tuple[tuple[str, str], ...] = ()  # further settings of librdkafka: ("sasl.username", "x") ...
    node_timeout_ms: int = 6_000  # a node that is silent for this long is lost
    standbys: int | None = (
        None  # nodes that fold a partition beside its owner (cluster/partition_pausing.py); None: all nodes
    )

    proxy_protocol: bool = False  # AMQP connections begin with a header of a balancer (host/proxy_protocol.py)
    proxy_protocol_from: tuple[str, ...] = ()  # ... and HTTP connections, too, but only from these networks
    log_level: str = "info"  # the broker logs to stderr from this level on (logging_setup.py)
    log_format: str = "text"  # or json
    loop_warning_ms: int = 100  # work that keeps all clients waiting for longer is logged (loop_watch.py); 0: none
    prometheus_port: int | None = None  # a second port for /metrics (RabbitMQ's is 15692); None: on the API's port only

    @property
    def address(self) -> str:
        """The AMQP listener's address and port, as other machines reach it.

        A broker that listens on all addresses gives the machine's host name."""
        host = socket.gethostname() if self.host in EVERYWHERE else self.addresses[0]
        return f"{bracketed(host)}:{self.amqp_port}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to listen on.

        `localhost` and `::` stand for one IPv4 and one IPv6 address if the machine has IPv6, else for the IPv4
        address."""
        both = BOTH_FAMILIES.get(self.host)
        if both is None:
            return (self.host,)
        return both if has_ipv6() else both[:1]

    @property
    def listeners(self) -> list[tuple[str, str, int]]:
        """The listeners, each as (RabbitMQ's name of the protocol, address, port)."""
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

    def both_ends(self, peer: str) -> str:
        """Return RabbitMQ's name of a connection, which is both of its ends.

        `peer` is address:port, or already both ends. (docs/glossary.md tells the three names of a connection apart.)"""
        if " -> " in peer:
            return peer
        address = self.addresses[-1 if peer.count(":") > 1 else 0]
        return f"{peer} -> {bracketed(address)}:{self.amqp_port}"

    @property
    def amqp_balancers(self) -> Balancers:
        """The addresses from which AMQP connections begin with a header of the PROXY protocol."""
        every = self.proxy_protocol and not self.proxy_protocol_from
        return Balancers(None if every else self.proxy_protocol_from)

    @property
    def http_balancers(self) -> Balancers:
        """The same of the management API: never all, as commands on this machine send no header."""
        return Balancers(self.proxy_protocol_from)

    @property
    def encrypts(self) -> bool:
        """Return True if some bodies are encrypted."""
        return bool(self.subject_header) or self.keep_bodies_days is not None

    @property
    def keys_directory(self) -> Path:
        """The directory of the keys that encrypt bodies."""
        return self.data / "keys" if self.keys is None else self.keys

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, the same for all nodes on one log."""
        return self.node if self.kafka is None else self.kafka_prefix

    @property
    def archives_topics(self) -> bool:
        """Return True if the log is in Kafka and has an archive, from which nodes read what Kafka no longer has."""
        return self.kafka is not None and self.archive.url is not None

    def topic_of(self, partition: str) -> str | None:
        """Return the name of the Kafka topic that has this partition; None for the embedded log."""
        return None if self.kafka is None else f"{self.kafka_prefix}.{partition.rpartition('-')[0]}"


def bracketed(address: str) -> str:
    """Write an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


@cache
def has_ipv6() -> bool:
    """Return True if this machine has IPv6 on loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
