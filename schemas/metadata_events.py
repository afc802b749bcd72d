"""The events that only the metadata log has.

They are about nodes, vhosts, users, permissions, parameters, exchanges, bindings, policies, erasures and marks.
Rules as in `events.py`.
"""

from dataclasses import dataclass

from rewindmq.schemas.values import Argument


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A broker node begins to share the log. The event's offset is the node's epoch.

    If an earlier epoch of the node was alive, this event ends it. `address`: host:port of its AMQP listener, for
    listings. `partitions`: the number of queue partitions that it uses."""

    node: str
    version: str
    machine_version: int
    address: str
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class VhostCreated:
    """A vhost was created, or an existing one gets this description, tags and default queue type.

    `default_queue_type`: the type of queues declared without x-queue-type; empty: classic."""

    vhost: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""


@dataclass(frozen=True, slots=True)
class VhostDeleted:
    """A vhost was deleted, with everything in it."""

    vhost: str


@dataclass(frozen=True, slots=True)
class UserSet:
    """A user was made or changed.

    `password_hash` is in PHC string form (argon2id), or an imported one of RabbitMQ's (`$rabbitmq-sha256$` and its
    base64; also -sha512, -md5). Empty: the user cannot log in."""

    name: str
    password_hash: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """A user was deleted, with its limits and permissions."""

    name: str


@dataclass(frozen=True, slots=True)
class PermissionsSet:
    """The permissions of a user in a vhost: regular expressions as in RabbitMQ's `set_permissions`."""

    vhost: str
    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class PermissionsCleared:
    """The permissions of a user in a vhost were removed."""

    vhost: str
    user: str


@dataclass(frozen=True, slots=True)
class TopicPermissionsSet:
    """A user's topic permissions: regular expressions over routing keys of a topic exchange.

    They apply in addition to those of `PermissionsSet`."""

    vhost: str
    user: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionsCleared:
    """A user's topic permissions on an exchange were removed."""

    vhost: str
    user: str
    exchange: str


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """A runtime parameter was set. `value` is canonical JSON.

    Limits of a vhost are component vhost-limits, name limits."""

    vhost: str
    component: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ParameterCleared:
    """A runtime parameter was removed."""

    vhost: str
    component: str
    name: str


@dataclass(frozen=True, slots=True)
class GlobalParameterSet:
    """A global parameter was set. `value` is canonical JSON."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class GlobalParameterCleared:
    """A global parameter was removed."""

    name: str


@dataclass(frozen=True, slots=True)
class UserLimitsSet:
    """The limits of a user were replaced.

    `definition`: canonical JSON of an object with max-connections, max-channels or both; `{}` lifts them."""

    user: str
    definition: str


@dataclass(frozen=True, slots=True)
class ExchangeDeclared:
    """An exchange was declared. An existing exchange is unchanged."""

    vhost: str
    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeDeleted:
    """An exchange was deleted, with its bindings."""

    vhost: str
    exchange: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A queue or an exchange was bound to an exchange.

    `destination_type`: queue or exchange. `queue_id`: the incarnation of the bound queue, because the binding does not
    apply to another queue of the same name. -1: an exchange."""

    vhost: str
    source: str
    destination_type: str
    destination: str
    routing_key: str
    arguments: tuple[Argument, ...] = ()
    queue_id: int = -1


@dataclass(frozen=True, slots=True)
class Unbound:
    """A binding was removed. The fields are those of its `Bound`."""

    vhost: str
    source: str
    destination_type: str
    destination: str
    routing_key: str
    arguments: tuple[Argument, ...] = ()
    queue_id: int = -1


@dataclass(frozen=True, slots=True)
class PolicySet:
    """A policy was set.

    `definition` is canonical JSON; `apply_to`: all, queues, exchanges, classic_queues, quorum_queues, streams."""

    vhost: str
    name: str
    pattern: str
    definition: str
    priority: int
    apply_to: str


@dataclass(frozen=True, slots=True)
class PolicyCleared:
    """A policy was removed."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class OperatorPolicySet:
    """An operator policy was set. The fields are those of `PolicySet`."""

    vhost: str
    name: str
    pattern: str
    definition: str
    priority: int
    apply_to: str


@dataclass(frozen=True, slots=True)
class OperatorPolicyCleared:
    """An operator policy was removed."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class SubjectErased:
    """The keys of a subject were destroyed, so that bodies under them (`Published.encryption`) cannot be read."""

    subject: str
    key_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MarkSet:
    """A moment was named.

    `positions`: each queue partition's name, and the offset below which all events had happened. The position in the
    metadata log is the offset of this event."""

    name: str
    positions: tuple[tuple[str, int], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """The name of a moment was removed."""

    name: str


@dataclass(frozen=True, slots=True)
class HistoryTrimmed:
    """The records of a queue partition before `offset`, its floor, are no longer kept.

    `until_ms`: their largest time. `chain` and `digest`: the log's hash chain and the state's digest at the floor.
    `findings`: texts, of an audit of the removed records."""

    partition: str
    offset: int
    until_ms: int
    chain: bytes
    digest: str
    findings: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HistoryForked:
    """From here on this is a separate history, with its own `identity`.

    `positions`: each queue partition's name, and the offset below which it is that of `parent`. `moment`: as requested.
    `source`: the archive's URL."""

    parent: str
    identity: str
    moment: str
    positions: tuple[tuple[str, int], ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class BodiesExpired:
    """The keys of a day (in UTC, such as 2026-11-23) were destroyed, so that bodies published then cannot be read."""

    day: str
    key_ids: tuple[str, ...]
