"""Definitions: what a broker holds besides messages, as a JSON document like RabbitMQ's, out and in.

Rules of this file
- The document has the keys that RabbitMQ 3.13 exports, in its order (rabbit_mgmt_wm_definitions.erl): a RabbitMQ takes
  ours, and we take a RabbitMQ's. Exclusive queues, exchanges that are there by rule and what is hidden are not in it.
- A password that was set here goes out as base64 of its argon2id PHC string. A RabbitMQ imports such a user, but has no
  such algorithm: it needs a new password there. Hashes that came from a RabbitMQ go back as they were.
- What comes in is judged as a whole before any of it is done (importing.py).
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import RABBITMQ_VERSION, VERSION
from engine.errors import AmqpError, PreconditionFailed
from engine.http.arguments import table_of
from engine.http.call import ApiError, require_sane
from engine.importing import Import
from engine.parameters import all_parameters
from engine.passwords import exported
from projections.hidden import is_hidden
from projections.machine.queue import Queue
from projections.topology import Topology
from schemas.events import Bound, ExchangeDeclared, PolicySet, UserSet, VhostCreated

if TYPE_CHECKING:
    from engine.broker import Broker

Item = dict[str, object]


def export(broker: "Broker") -> Item:
    """Everything."""
    topology = broker.topology
    permissions = [topology.permissions[key] for key in sorted(topology.permissions)]
    topics = [topology.topic_permissions[key] for key in sorted(topology.topic_permissions)]
    return {
        "rabbit_version": RABBITMQ_VERSION, "rabbitmq_version": RABBITMQ_VERSION, "product_name": "RewindMQ",
        "product_version": VERSION,
        "users": [user_item(topology, topology.users[name]) for name in sorted(topology.users)],
        "vhosts": [vhost_item(topology.vhosts[name]) for name in sorted(topology.vhosts)],
        "permissions": [
            {"user": each.user, "vhost": each.vhost, "configure": each.configure, "write": each.write,
             "read": each.read} for each in permissions
        ],
        "topic_permissions": [
            {"user": each.user, "vhost": each.vhost, "exchange": each.exchange, "write": each.write, "read": each.read}
            for each in topics
        ],
        "parameters": all_parameters(topology),
        "global_parameters": [
            {"name": name, "value": json.loads(topology.global_parameters[name].value)}
            for name in sorted(topology.global_parameters)
        ],
        **_of_vhosts(broker, None),
    }  # fmt: skip


def export_vhost(broker: "Broker", vhost: str) -> Item:
    """What is in one vhost, without its name: it can be imported into any."""
    parameters = [each for each in all_parameters(broker.topology) if each["vhost"] == vhost]
    found = {"parameters": parameters, **_of_vhosts(broker, vhost)}
    return {"rabbit_version": RABBITMQ_VERSION} | {
        category: [{key: value for key, value in item.items() if key != "vhost"} for item in items]
        for category, items in found.items()
    }


def _of_vhosts(broker: "Broker", vhost: str | None) -> dict[str, list[Item]]:
    """What is in one, or in all (None)."""
    topology = broker.topology
    queues = [queue for queue in broker.queues(vhost) if not queue.exclusive]
    queues = [queue for queue in queues if not is_hidden(queue.name)]
    named = {(queue.vhost, queue.name) for queue in queues}
    return {
        "policies": [
            policy_item(each) for (home, _), each in sorted(topology.policies.items()) if vhost in (None, home)
        ],
        "queues": [queue_item(queue) for queue in queues],
        "exchanges": [
            exchange_item(each)
            for (home, name), each in sorted(topology.exchanges.items())
            if vhost in (None, home) and name != "" and not name.startswith("amq.")
        ],
        "bindings": [
            binding_item(bound)
            for bound in topology.bindings(vhost)
            if bound.destination_type == "exchange"
            or ((bound.vhost, bound.destination) in named and broker.router.is_live(bound))
        ],
    }  # fmt: skip


def user_item(topology: Topology, user: UserSet) -> Item:
    password_hash, algorithm = exported(user.password_hash)
    return {
        "name": user.name, "password_hash": password_hash, "hashing_algorithm": algorithm, "tags": list(user.tags),
        "limits": topology.user_limits.get(user.name, {}),
    }  # fmt: skip


def metadata_of(vhost: VhostCreated) -> Item:
    kind: Item = {"default_queue_type": vhost.default_queue_type} if vhost.default_queue_type else {}
    return {"description": vhost.description, "tags": list(vhost.tags)} | kind


def vhost_item(vhost: VhostCreated) -> Item:
    return {"name": vhost.vhost, **metadata_of(vhost), "metadata": metadata_of(vhost)}


def policy_item(policy: PolicySet) -> Item:
    return {
        "vhost": policy.vhost, "name": policy.name, "pattern": policy.pattern, "apply-to": policy.apply_to,
        "definition": json.loads(policy.definition), "priority": policy.priority,
    }  # fmt: skip


def queue_item(queue: Queue) -> Item:
    return {
        "name": queue.name, "vhost": queue.vhost, "durable": queue.durable, "auto_delete": queue.auto_delete,
        "arguments": table_of(queue.arguments),
    }  # fmt: skip


def exchange_item(exchange: ExchangeDeclared) -> Item:
    return {
        "name": exchange.exchange, "vhost": exchange.vhost, "type": exchange.type, "durable": exchange.durable,
        "auto_delete": exchange.auto_delete, "internal": exchange.internal, "arguments": table_of(exchange.arguments),
    }  # fmt: skip


def binding_item(bound: Bound) -> Item:
    return {
        "source": bound.source, "vhost": bound.vhost, "destination": bound.destination,
        "destination_type": bound.destination_type, "routing_key": bound.routing_key,
        "arguments": table_of(bound.arguments),
    }  # fmt: skip


async def load(broker: "Broker", path: Path) -> None:
    """At a start: a file, or all *.json of a directory by their names. PreconditionFailed, with the file; OSError."""
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            document = json.loads(file.read_text())
            require_sane(document, 0)
        except (ValueError, RecursionError, ApiError) as error:
            raise PreconditionFailed(f"{file}: {error}") from None
        try:
            await Import(broker, "", document).carry_out()
        except AmqpError as error:
            raise PreconditionFailed(f"{file}: {error.text}") from None
