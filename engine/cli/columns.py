"""The columns of listings, by rabbitmqctl's names: how each is taken from an answer of the API.

A column that RabbitMQ has and RewindMQ does not count (messages in RAM, disk reads) is blank.
"""

from collections.abc import Callable, Sequence

from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.values import Definition, Value, arguments_of, client_properties_of

Item = dict[str, object]
Column = Callable[[Item], Value]


def field(name: str, *inner: str) -> Column:
    """Return a field of the item, or of an object in it."""

    def value(item: Item) -> Value:
        found: object = item.get(name)
        for each in inner:
            found = found.get(each) if isinstance(found, dict) else None
        return found

    return value


def fields(names: str) -> dict[str, Column]:
    """Columns that are fields of the item with the same names."""
    return {name: field(name) for name in names.split()}


def blank(item: Item) -> Value:
    """Return a column of RabbitMQ that RewindMQ does not count."""
    return None


def definition(item: Item) -> Definition:
    """Return the policy that holds for a queue or exchange, merged."""
    found = item.get("effective_policy_definition")
    return Definition(tuple(found.items()) if isinstance(found, dict) else ())


def queue_pid(item: Item) -> str:
    """Return the place of a queue: its node, the partition of the log, and the queue id."""
    return f"<{item.get('node')}.{item.get('partition')}.{item.get('queue_id')}>"


def owner_pid(item: Item) -> Value:
    """Return the connection that an exclusive queue belongs to."""
    owner = item.get("owner_pid_details")
    return f"<{owner.get('name', session(owner))}>" if isinstance(owner, dict) else None


def channel_pid(item: Item) -> Value:
    """Return the channel of a consumer."""
    details = item.get("channel_details")
    if not isinstance(details, dict):
        return None
    elsewhere = f"{session(details)}.{details.get('number')}"
    return f"<{details.get('name', elsewhere)}>"


def session(details: dict[str, object]) -> str:
    """Node and session id of a connection of another node, whose name is not known here."""
    return f"{details.get('node')}.{details.get('session_id')}"


QUEUE: dict[str, Column] = (
    fields(
        "name durable auto_delete policy operator_policy exclusive exclusive_consumer_tag messages_ready"
        " messages_unacknowledged messages message_bytes message_bytes_ready message_bytes_unacknowledged"
        " head_message_timestamp consumers state type node folded_at leader members online messages_dlx"
        " message_bytes_dlx single_active_consumer_tag oldest_ready_age_ms delivery_wait_avg_ms ack_wait_avg_ms"
    )
    | {"arguments": arguments_of, "effective_policy_definition": definition, "pid": queue_pid, "owner_pid": owner_pid}
    | dict.fromkeys(
        fields(
            "exclusive_consumer_pid messages_ready_ram messages_unacknowledged_ram messages_ram messages_persistent"
            " message_bytes_ram message_bytes_persistent disk_reads disk_writes consumer_utilisation consumer_capacity"
            " memory slave_pids synchronised_slave_pids mirror_pids synchronised_mirror_pids"
        ),
        blank,
    )
)
EXCHANGE = fields("name type durable auto_delete internal policy") | {"arguments": arguments_of}
BINDING: dict[str, Column] = {
    "source_name": field("source"),
    "source_kind": lambda item: "exchange",
    "destination_name": field("destination"),
    "destination_kind": field("destination_type"),
    "routing_key": field("routing_key"),
    "arguments": arguments_of,
}
CONNECTION = fields(
    "name port host peer_port peer_host ssl state channels auth_mechanism user vhost frame_max channel_max"
    " connected_at protocol ssl_protocol ssl_key_exchange ssl_cipher ssl_hash peer_cert_subject peer_cert_issuer"
    " peer_cert_validity timeout recv_oct recv_cnt send_oct send_cnt send_pend"
) | {"pid": lambda item: f"<{item.get('node')}.{item.get('session_id')}>", "client_properties": client_properties_of}
CHANNEL = fields(
    "name number user vhost transactional confirm consumer_count messages_unacknowledged messages_uncommitted"
    " acks_uncommitted prefetch_count global_prefetch_count messages_unconfirmed atomic_commits"
) | {"pid": lambda item: f"<{item.get('name')}>", "connection": field("connection_details", "name")}
CONSUMER = {
    "queue_name": field("queue", "name"),
    "channel_pid": channel_pid,
    **fields("consumer_tag ack_required prefetch_count active activity_status"),
    "arguments": arguments_of,
}


def chosen(asked: Sequence[str], default: Sequence[str], known: dict[str, Column]) -> list[str]:
    """Return the columns to show. Like rabbitmqctl, also takes them separated by commas. Usage error for an unknown
    one."""
    names = [name for each in asked for name in each.split(",") if name] or list(default)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CliError(
            USAGE,
            f"(argument validation): Info key(s) {','.join(unknown)} are not supported. Columns are:"
            f" {', '.join(sorted(known))}",
        )
    return list(dict.fromkeys(names))


def rows_of(items: Sequence[Item], names: Sequence[str], known: dict[str, Column]) -> list[dict[str, Value]]:
    """Return the columns `names` of each item."""
    return [{name: known[name](item) for name in names} for item in items]
