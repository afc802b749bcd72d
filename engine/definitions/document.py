"""Makes the definitions of a broker: all that it has besides messages, as a JSON document like RabbitMQ's.

Rules of this file
- The document has the keys that RabbitMQ 3.13 exports, in its order (rabbit_mgmt_wm_definitions.erl): RabbitMQ
  imports ours, and we import RabbitMQ's. Exclusive queues, predeclared exchanges and internal queues are not in it.
- A password that was set here is exported as base64 of its argon2id PHC string. RabbitMQ imports such a user, but does
  not have this algorithm: the user needs a new password there. Hashes that came from RabbitMQ go back as they were.
- Queues of partitions that are not folded here are those that their owners have published. A binding to another queue
  is left out: without its queue it could not be imported.
- An import is checked as a whole before it changes anything (load.py).
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.broker.parameters import all_parameters
from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.definitions.load import Import
from rewindmq.engine.definitions.shapes import (
    AccountView,
    BindingDefinitionView,
    ExchangeDefinitionView,
    GlobalParameterView,
    ParameterView,
    PermissionsView,
    PolicyView,
    QueueDefinitionView,
    TopicPermissionsView,
    VhostMetadataView,
)
from rewindmq.engine.errors import AmqpError, PreconditionFailed
from rewindmq.engine.host.loop_share import Work, by_key
from rewindmq.engine.partition.queue_counters import Listed
from rewindmq.schemas.json_values import Json, UnfitJson, require_sane
from rewindmq.schemas.metadata_events import (
    Bound,
    VhostCreated,
)
from rewindmq.schemas.values import BROKER
from rewindmq.schemas.views import View

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

Item = dict[str, object]


async def export(broker: "Broker", work: Work) -> Item:
    """The definitions of the whole broker.

    Lists of entries are made as they are read. Until then the things that they describe may change."""
    topology = broker.topology
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "RewindMQ",
        "product_version": VERSION,
        "users": (AccountView.of(each, topology) for each in await by_key(work, topology.users)),
        "vhosts": map(vhost_item, await by_key(work, topology.vhosts)),
        "permissions": map(PermissionsView.of, await by_key(work, topology.permissions)),
        "topic_permissions": map(TopicPermissionsView.of, await by_key(work, topology.topic_permissions)),
        "parameters": map(ParameterView.of, await by_key(work, all_parameters(topology))),
        "global_parameters": map(GlobalParameterView.of, await by_key(work, topology.global_parameters)),
        **await _of_vhosts(broker, work, None),
    }


async def export_vhost(broker: "Broker", work: Work, vhost: str) -> Item:
    """The definitions of one vhost, without its name: they can be imported into any vhost."""
    parameters = await by_key(work, all_parameters(broker.topology), lambda key: key[0] == vhost)
    rest = await _of_vhosts(broker, work, vhost)
    found: dict[str, Iterable[Item | View]] = {"parameters": map(ParameterView.of, parameters), **rest}
    return {"rabbit_version": RABBITMQ_VERSION} | {
        category: map(_without_vhost, items) for category, items in found.items()
    }


def _without_vhost(item: Item | View) -> Item:
    fields = item.__dict__ if isinstance(item, View) else item
    return {key: value for key, value in fields.items() if key != "vhost"}


async def _of_vhosts(broker: "Broker", work: Work, vhost: str | None) -> dict[str, Iterable[Item | View]]:
    """The policies, queues, exchanges and bindings of one vhost, or of all (None)."""
    topology = broker.topology
    vhosts = topology.vhosts if vhost is None else (vhost,)
    there = {(queue.vhost, queue.name): queue for _, queue in await broker.queues.listed(work, vhosts)}
    queues = [queue for queue in there.values() if not queue.exclusive]
    exchanges = [
        (key, exchange)
        async for key, exchange in work.over(list(topology.exchanges.items()))
        if key[0] in vhosts and key[1] != "" and not key[1].startswith("amq.")
    ]
    bound = broker.exchanges.bindings_by_source(work, vhosts)
    bindings = [each async for each in bound if _is_exported(broker, there, each)]
    policies = await by_key(work, topology.policies, lambda key: vhost in (None, key[0]))
    return {
        "policies": map(PolicyView.of, policies),
        "queues": map(QueueDefinitionView.of, queues),
        "exchanges": map(ExchangeDefinitionView.of, await work.in_order(exchanges)),
        "bindings": map(BindingDefinitionView.of, bindings),
    }


def _is_exported(broker: "Broker", there: Mapping[tuple[str, str], Listed], bound: Bound) -> bool:
    if bound.destination_type == "exchange":
        return True
    queue = there.get((bound.vhost, bound.destination))
    return queue is not None and not queue.exclusive and broker.router.is_live(bound)


def vhost_item(vhost: VhostCreated) -> Item:
    """A vhost."""
    metadata = VhostMetadataView.of(vhost)
    return {"name": vhost.vhost, **metadata.__dict__, "metadata": metadata}


async def load(broker: "Broker", path: Path) -> None:
    """Import definitions at a start or a SIGHUP: from a file, or from all *.json of a directory, by their names.

    A thread reads the files, so a slow disk and a large file do not hold up clients.
    Raises PreconditionFailed, which names the file, and OSError."""
    for file, document in await asyncio.to_thread(_read, path):
        try:
            await Import(broker, BROKER, document).carry_out()
        except AmqpError as error:
            raise PreconditionFailed(f"{file}: {error.text}") from None


def _read(path: Path) -> list[tuple[Path, Json]]:
    """The documents of `load`, with their files. Raises PreconditionFailed, OSError."""
    found = []
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            document: Json = json.loads(file.read_text())
            require_sane(document, 0)
        except (ValueError, RecursionError, UnfitJson) as error:
            raise PreconditionFailed(f"{file}: {error}") from None
        found.append((file, document))
    return found
