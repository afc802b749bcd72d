"""Makes and checks the topics of a history in Kafka, and finds their places.

    <prefix>.metadata    1 partition      metadata-0
    <prefix>.queues      N partitions     queues-0 .. queues-N-1
    <prefix>.nodes       1 partition      nodes-0, heartbeats, kept for an hour
    <prefix>.chain       2 partitions     seals (keeping/seals/in_topic.py), made by the first sealer: no node needs it
    <prefix>.counters    N partitions     counters-0 .. counters-N-1, the last counters of each queue, compacted. Made
                                          by the first node that pauses partitions; not part of the history
    <prefix>.states      N partitions     states-0 .. states-N-1, a copy of the newest snapshot of each queue partition
                                          (states.py). Made by the first owner that has one; not part of the history

An event's time is the log's (LogAppendTime), and history is kept for ever, so a topic that would drop or compact it, or
that could lose its end to an out-of-sync leader, is refused. If an archive keeps the records that Kafka drops, the
queues' topic may have a retention.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from rewindmq import failpoints
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import ANSWER_SECONDS, UNKNOWN_SECONDS, KafkaClients, asked, code_of

DEFAULT_PARTITIONS = 2
DEFAULT_REPLICATION = 3
CHAIN_PARTITIONS = 2  # seals, and their openings
# Kafka's own default, one mebibyte, is less than the largest message.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_COPY_BYTES = MAX_MESSAGE_BYTES + 1_024  # a copy for consoles has one more header
NODES_RETENTION_MS = 3_600_000

# The settings that topics must have, and why.
_TIME_TYPE = "message.timestamp.type"
_WRITERS_TIME = "CreateTime"  # while topics are made from an archive
_ALWAYS = {
    _TIME_TYPE: ("LogAppendTime", "events get their time from the log"),
    "cleanup.policy": ("delete", "compaction takes events out of the middle of the history"),
}
RETENTION = ("retention.ms", "retention.bytes")
# Compacted often, so that a starting node reads little more than one record for each queue.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.2",
}
_FOR_EVER = {
    "retention.ms": ("-1", "history is kept for ever"),
    "retention.bytes": ("-1", "history is kept for ever"),
    "unclean.leader.election.enable": ("false", "a leader that was not in sync would undo what was confirmed"),
}


# Kafka frees whole segments of dropped copies.
_COPIES = {"segment.bytes": str(16 * 1024 * 1024)}


class NoSuchTopic(LogError):
    """Kafka answers, but does not have the topic."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Kafka's own retention of a topic: the age, and the size of a partition, beyond which it removes records."""

    ms: int | None = None
    size_bytes: int | None = None

    @property
    def limits(self) -> bool:
        """Return True if the retention removes anything."""
        return self != Retention()

    @property
    def text(self) -> str:
        """Return the retention as Kafka's settings."""
        return ",".join(
            f"{key}={value}"
            for key, value in zip(RETENTION, (self.ms, self.size_bytes), strict=True)
            if value is not None
        )


@dataclass(frozen=True, slots=True)
class Replicas:
    """The place of a partition, as `host:port` of Kafka's brokers. `leader` is empty while there is none."""

    partition: str
    leader: str
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]


class KafkaTopics:
    """The three topics of a history, the topic of its seals, that of counters and that of copies of snapshots."""

    def __init__(self, clients: KafkaClients, prefix: str) -> None:
        self.metadata = f"{prefix}.metadata"
        self.queues = f"{prefix}.queues"
        self.nodes = f"{prefix}.nodes"
        self.chain = f"{prefix}.chain"
        self.counters = f"{prefix}.counters"
        self.states = f"{prefix}.states"
        self._names = (self.metadata, self.queues, self.nodes)
        self._clients = clients
        self._addresses: dict[int, str] = {}  # Kafka's brokers -> host:port

    def create(self, partitions: int | None, replication: int | None) -> None:
        """Make the missing topics. Another node may do the same at the same time."""
        admin = self._clients.admin()
        missing = [name for name in self._names if self._describe(admin, name) is None]
        if not missing:
            return
        brokers = asked("the brokers", lambda: len(admin.list_topics(timeout=ANSWER_SECONDS).brokers))
        self._make(missing, partitions or DEFAULT_PARTITIONS, replication or min(DEFAULT_REPLICATION, brokers))

    def create_for_recovery(self, partitions: int, replication: int | None) -> None:
        """Make the topics for records that already have times. Topics of a begun recovery are kept.

        Raises LogError if other topics have these names, or if they have another number of partitions."""
        admin = self._clients.admin()
        kept = (self.metadata, self.queues)
        found = {name: description for name in self._names if (description := self._describe(admin, name)) is not None}
        types = {name: self._setting(name, _TIME_TYPE) for name in kept if name in found}
        if found and _WRITERS_TIME not in types.values():
            raise LogError(f"Kafka: the topic {min(found)} exists already: recover to another prefix")
        if self.queues in found and len(found[self.queues].partitions) != partitions:
            raise LogError(f"Kafka: the topic {self.queues} has to have {partitions} partitions: delete it")
        brokers = asked("the brokers", lambda: len(admin.list_topics(timeout=ANSWER_SECONDS).brokers))
        replicas = replication or min(DEFAULT_REPLICATION, brokers)
        self._make([name for name in kept if name not in found], partitions, replicas, {_TIME_TYPE: _WRITERS_TIME})
        if self.nodes not in found:
            self._make([self.nodes], partitions, replicas)
        self._described(admin)

    def end_recovery(self) -> None:
        """Let Kafka set the times of records from now on, so that nodes may start.

        Raises LogError."""
        value, _ = _ALWAYS[_TIME_TYPE]
        for name in (self.queues, self.metadata):
            asked(f"the settings of {name}", partial(self._set, name, _TIME_TYPE, value))

    def _set(self, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        [future] = self._clients.admin().incremental_alter_configs([resource]).values()
        future.result(ANSWER_SECONDS)

    def _setting(self, name: str, key: str) -> str | None:
        settings = asked(f"the settings of {name}", partial(self._settings, self._clients.admin(), name))
        return settings[key].value

    def has_chain(self) -> bool:
        """Return True if the topic of the seals exists."""
        return self._describe(self._clients.admin(), self.chain) is not None

    def create_chain(self) -> None:
        """Make the topic of the seals, with as many replicas as the metadata's, or check it.

        Raises LogError."""
        admin = self._clients.admin()
        if self._describe(admin, self.chain) is None:
            self._make([self.chain], 1, len(self._described(admin)[self.metadata].partitions[0].replicas))
        description = self._describe(admin, self.chain)
        if description is not None and len(description.partitions) != CHAIN_PARTITIONS:
            raise LogError(f"Kafka: the topic {self.chain} has to have {CHAIN_PARTITIONS} partitions")
        self._check_settings(self.chain, {**_ALWAYS, **_FOR_EVER})

    def create_counters(self, partitions: int) -> None:
        """Make the topic of counters, with as many replicas as the metadata's, or check it.

        `partitions`: how many the queues' topic has. Raises LogError."""
        admin = self._clients.admin()
        if self._describe(admin, self.counters) is None:
            replicas = len(self._described(admin)[self.metadata].partitions[0].replicas)
            self._make([self.counters], partitions, replicas, _COMPACTED)
        description = self._describe(admin, self.counters)
        if description is not None and len(description.partitions) < partitions:
            raise LogError(
                f"Kafka: the topic {self.counters} has {len(description.partitions)} partitions, and {self.queues} has"
                f" {partitions}: delete {self.counters}, and start the nodes again: one of them recreates it"
            )
        why = "of counters only the last ones are kept"
        self._check_settings(self.counters, {"cleanup.policy": ("compact", why), _TIME_TYPE: _ALWAYS[_TIME_TYPE]})

    def has_states(self, number: int) -> bool:
        """Return True if the topic with the copies of snapshots exists and has this partition."""
        description = self._describe(self._clients.admin(), self.states)
        return description is not None and number < len(description.partitions)

    def create_states(self, partitions: int) -> None:
        """Make the topic of copies of snapshots, with as many replicas as the metadata's, if it is missing.

        `partitions`: how many the queues' topic has. Raises LogError."""
        admin = self._clients.admin()
        if self._describe(admin, self.states) is None:
            replicas = len(self._described(admin)[self.metadata].partitions[0].replicas)
            self._make([self.states], partitions, replicas, _COPIES)

    def add_partitions(self, partitions: int, only_ask: bool) -> None:
        """Give the queues' topic, and first the existing topics beside it, this number of partitions, placed by Kafka.

        Topics that already have them are unchanged. `only_ask`: ask Kafka whether it would do it, without any change.
        Raises LogError if the topic already has more, or Kafka refuses."""
        admin = self._clients.admin()
        for name in (self.counters, self.states, self.queues):  # a starting node needs the first two for the last
            description = self._describe(admin, name)
            there = partitions if description is None else len(description.partitions)
            if name == self.queues and there > partitions:
                raise LogError(f"Kafka: the topic {name} has {there} partitions already: ask for at least {there}")
            if there < partitions:
                asked(f"partitions of the topic {name}", partial(self._add, name, partitions, only_ask))

    def _add(self, name: str, partitions: int, only_ask: bool) -> None:
        admin = self._clients.admin()
        added = admin.create_partitions(
            [NewPartitions(name, partitions)], validate_only=only_ask, request_timeout=ANSWER_SECONDS
        )
        try:
            added[name].result(ANSWER_SECONDS + 1)
        except KafkaException as error:
            if code_of(error) != KafkaError.INVALID_PARTITIONS or not self._come_to_have(admin, name, partitions):
                raise

    def _come_to_have(self, admin: AdminClient, name: str, partitions: int) -> bool:
        """Return True if the topic has `partitions` partitions because another node was faster.

        Waits up to UNKNOWN_SECONDS, because brokers learn of new partitions late."""
        until = time.monotonic() + UNKNOWN_SECONDS
        while True:
            found = self._describe(admin, name)
            if found is not None and len(found.partitions) >= partitions:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)

    def create_console(self, pairs: Mapping[str, str]) -> list[int]:
        """Make the missing copies for consoles, given by their original topics.

        Returns the number of partitions of each. Raises LogError."""
        admin = self._clients.admin()
        counts = []
        for name, copy in pairs.items():
            source = self._described(admin)[name]
            found = self._describe(admin, copy)
            count = len(source.partitions)
            if found is None:
                settings = {_TIME_TYPE: _WRITERS_TIME, "max.message.bytes": str(MAX_COPY_BYTES)}
                topic = NewTopic(copy, count, len(source.partitions[0].replicas), config=settings)
                asked(f"the topic {copy} cannot be created", partial(self._create, topic))
            elif len(found.partitions) < count:
                raise LogError(f"Kafka: the topic {copy} must have {count} partitions: delete it, and start again")
            counts.append(count)
        return counts

    def _make(
        self, missing: list[str], partitions: int, replicas: int, settings: Mapping[str, str] | None = None
    ) -> None:
        """Make the missing topics.

        `partitions`: the number for the queues' topic. `settings`: in addition to the usual ones."""
        failpoints.reached("kafka.before_topics")
        for name in missing:
            config = {key: value for key, (value, _) in {**_ALWAYS, **_FOR_EVER}.items()}
            config["min.insync.replicas"] = "2" if replicas >= 3 else "1"
            config["max.message.bytes"] = str(MAX_MESSAGE_BYTES)
            config |= settings or {}
            if name == self.nodes:
                config |= {"retention.ms": str(NODES_RETENTION_MS), "segment.ms": str(NODES_RETENTION_MS)}
            counts = dict.fromkeys((self.queues, self.counters, self.states), partitions)
            count = {**counts, self.chain: CHAIN_PARTITIONS}.get(name, 1)
            make = partial(self._create, NewTopic(name, count, replicas, config=config))
            asked(f"the topic {name} cannot be created", make)  # repeated while a controller is elected

    def _create(self, topic: NewTopic) -> None:
        try:
            made = self._clients.admin().create_topics([topic], request_timeout=ANSWER_SECONDS)
            made[topic.topic].result(ANSWER_SECONDS + 1)
        except KafkaException as error:
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def retention(self, name: str) -> Retention:
        """Return the retention of a topic.

        Raises LogError, NoAnswer."""
        settings = asked(f"the settings of {name}", partial(self._settings, self._clients.admin(), name))
        values = [int(settings[key].value or -1) for key in RETENTION]
        return Retention(*(value if value >= 0 else None for value in values))

    def keep_all(self, name: str) -> None:
        """Switch off the retention of a topic.

        Raises LogError, NoAnswer."""
        for key in RETENTION:
            asked(f"the settings of {name}", partial(self._set, name, key, "-1"))

    def check(self, partitions: int | None, expiry_ms: int | None = None) -> tuple[int, int]:
        """Check the topics, and return the most bytes that a record may have and the number of queue partitions.

        `expiry_ms`: the queues' topic may have a retention that keeps records for at least this time; None: it may have
        none. Raises LogError if the topics are not fit for a history."""
        admin = self._clients.admin()
        descriptions = self._described(admin)
        found = len(descriptions[self.queues].partitions)
        if partitions is not None and partitions > found:
            raise LogError(
                f"Kafka: the topic {self.queues} has {found} partitions, and {partitions} are asked for: their number"
                " is fixed when the topic is made, because a queue's history is in the partition that its name gives"
            )
        for name in (self.metadata, self.nodes):
            if len(descriptions[name].partitions) != 1:
                raise LogError(f"Kafka: the topic {name} must have one partition: delete it, and start the node again")
        limit = MAX_MESSAGE_BYTES
        for name in self._names:
            rules = _ALWAYS if name == self.nodes else {**_ALWAYS, **_FOR_EVER}
            if expiry_ms is not None and name == self.queues:
                rules = {key: rule for key, rule in rules.items() if key not in RETENTION}
            config = self._check_settings(name, rules)
            if expiry_ms is not None and name == self.queues:
                self._check_expiry(int(config[RETENTION[0]].value or -1), expiry_ms)
            limit = min(limit, int(config["max.message.bytes"].value or 0))
        return limit, found

    def _check_expiry(self, retention_ms: int, least_ms: int) -> None:
        if 0 <= retention_ms < least_ms:
            raise LogError(
                f"Kafka: the topic {self.queues} has retention.ms={retention_ms}, so Kafka would remove unarchived"
                f" records. It has to be at least ten times --archive-lag: set it with kafka-configs.sh --alter"
                f" --topic {self.queues} --add-config retention.ms={least_ms}, or more"
            )

    def _check_settings(self, name: str, rules: Mapping[str, tuple[str, str]]) -> dict[str, ConfigEntry]:
        config = asked(f"the settings of {name}", partial(self._settings, self._clients.admin(), name))
        for key, (value, why) in rules.items():
            if config[key].value != value:
                raise LogError(
                    f"Kafka: the topic {name} has {key}={config[key].value}, and has to have {value} ({why}):"
                    f" set it with kafka-configs.sh --alter --topic {name} --add-config {key}={value}"
                )
        return config

    def partitions(self) -> int:
        """Return the number of queue partitions."""
        return len(self._described(self._clients.admin())[self.queues].partitions)

    def identity(self) -> str:
        """Return a text that is unique to this history in any Kafka."""
        admin = self._clients.admin()
        ids = [f"{name}={description.topic_id}" for name, description in self._described(admin).items()]
        cluster_id = asked("its id", lambda: admin.cluster_id(ANSWER_SECONDS))
        return " ".join([f"cluster={cluster_id}", *ids])

    def check_identity(self, identity: str) -> None:
        """Raise LogError if these are not the same topics as before. If Kafka does not answer, nothing is known."""
        try:
            found = self.identity()
        except NoSuchTopic:
            raise
        except LogError:
            return
        if found != identity:
            raise LogError(f"Kafka: the topics are not the ones that this node started with: {identity} became {found}")

    def replicas(self) -> list[Replicas]:
        """Return the current places of the queue partitions; empty if the queried broker does not know them.

        Any broker is asked, because the controller may be away. A broker that is away has its last known address."""
        admin = self._clients.admin()
        found = asked("its brokers", lambda: admin.list_topics(self.queues, timeout=ANSWER_SECONDS))
        self._addresses |= {number: f"{broker.host}:{broker.port}" for number, broker in found.brokers.items()}

        def address(number: int) -> str:
            return "" if number < 0 else self._addresses.get(number, f"broker {number}")

        return [
            Replicas(
                f"queues-{each.id}",
                address(each.leader),
                tuple(map(address, each.replicas)),
                tuple(map(address, each.isrs)),
            )
            for _, each in sorted(found.topics[self.queues].partitions.items())
        ]

    def _described(self, admin: AdminClient) -> dict[str, TopicDescription]:
        descriptions = {}
        for name in self._names:
            deadline = time.monotonic() + UNKNOWN_SECONDS
            while (description := self._describe(admin, name)) is None:
                if time.monotonic() > deadline:
                    raise NoSuchTopic(
                        f"Kafka: at {self._clients.bootstrap} there is no topic {name}: no node has been started with"
                        " this prefix (--kafka-prefix), or the topic was deleted"
                    )
                time.sleep(0.05)
            descriptions[name] = description
        return descriptions

    def _describe(self, admin: AdminClient, name: str) -> TopicDescription | None:
        """Return the description of a topic; None: the queried broker knows no such topic."""

        def ask() -> TopicDescription | None:
            future = admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER_SECONDS)[name]
            try:
                description: TopicDescription = future.result(ANSWER_SECONDS + 1)
                return description
            except KafkaException as error:
                if code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise

        return asked(f"the topic {name}", ask)

    def _settings(self, admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
        [future] = admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name)], request_timeout=ANSWER_SECONDS
        ).values()
        settings: dict[str, ConfigEntry] = future.result(ANSWER_SECONDS + 1)
        return settings
