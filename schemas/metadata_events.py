"""The events of the metadata log alone.

They are about nodes, vhosts, users, permissions, parameters, exchanges, bindings, policies, erasures and marks.
Rules as in `events.py`.
"""

from dataclasses import dataclass

from rewindmq.schemas.values import Argument


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A broker node begins to share the log. The event's offset is its epoch; an earlier epoch of the same node that
    was alive is lost by it. `address`: host:port of its AMQP listener, for listings."""

    node: str
    version: str
    machine_version: int
    address: str


@dataclass(frozen=True, slots=True)
class VhostCreated:
    """Of a vhost that exists: it is given this description, tags and default queue type. `default_queue_type`: of the
    queues that are declared without x-queue-type; empty: classic."""

    vhost: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""


@dataclass(frozen=True, slots=True)
class VhostDeleted:
    vhost: str


@dataclass(frozen=True, slots=True)
class UserSet:
    """A user was made or changed. `password_hash` is in PHC string form (argon2id), or an imported one of RabbitMQ's
    (`$rabbitmq-sha256$` and its base64; also -sha512, -md5); empty: cannot log in."""

    name: str
    password_hash: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UserDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class PermissionsSet:
    """Regular expressions as RabbitMQ's `set_permissions`."""

    vhost: str
    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class PermissionsCleared:
    vhost: str
    user: str


@dataclass(frozen=True, slots=True)
class TopicPermissionsSet:
    """Regular expressions over routing keys of the topic exchange, beside what `PermissionsSet` says."""

    vhost: str
    user: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionsCleared:
    vhost: str
    user: str
    exchange: str


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """A runtime parameter; `value` is canonical JSON. Limits of a vhost are component vhost-limits, name limits."""

    vhost: str
    component: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ParameterCleared:
    vhost: str
    component: str
    name: str


@dataclass(frozen=True, slots=True)
class GlobalParameterSet:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class GlobalParameterCleared:
    name: str


@dataclass(frozen=True, slots=True)
class UserLimitsSet:
    """`definition`: canonical JSON of an object with max-connections, max-channels or both; `{}` lifts them."""

    user: str
    definition: str


@dataclass(frozen=True, slots=True)
class ExchangeDeclared:
    vhost: str
    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeDeleted:
    vhost: str
    exchange: str


@dataclass(frozen=True, slots=True)
class Bound:
    """`destination_type`: queue or exchange. `queue_id`: the incarnation of the queue that was bound; of another queue
    of the same name this is no binding. -1: an exchange, or not recorded (as before there were several nodes)."""

    vhost: str
    source: str
    destination_type: str
    destination: str
    routing_key: str
    arguments: tuple[Argument, ...] = ()
    queue_id: int = -1


@dataclass(frozen=True, slots=True)
class Unbound:
    vhost: str
    source: str
    destination_type: str
    destination: str
    routing_key: str
    arguments: tuple[Argument, ...] = ()
    queue_id: int = -1


@dataclass(frozen=True, slots=True)
class PolicySet:
    """`definition` is canonical JSON; `apply_to`: all, queues, exchanges, classic_queues, quorum_queues, streams."""

    vhost: str
    name: str
    pattern: str
    definition: str
    priority: int
    apply_to: str


@dataclass(frozen=True, slots=True)
class PolicyCleared:
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class OperatorPolicySet:
    vhost: str
    name: str
    pattern: str
    definition: str
    priority: int
    apply_to: str


@dataclass(frozen=True, slots=True)
class OperatorPolicyCleared:
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class SubjectErased:
    """The keys of a subject were destroyed: bodies under them (`Published.encryption`) can't be read any more."""

    subject: str
    key_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MarkSet:
    """A moment was given a name. `positions`: of each queue partition its name and the offset below which all has
    happened; in the metadata log that is this event itself."""

    name: str
    positions: tuple[tuple[str, int], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    name: str
