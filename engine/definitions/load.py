"""Imports definitions: checks a document as a whole, and only then carries it out.

Rules of this file
- The whole document is checked first. Permissions, policies and bindings may name vhosts, users, exchanges and queues
  of the document. The error names each place in the document that is wrong (the first 20), and nothing has changed
  then. (RabbitMQ stops in the middle.)
- Nothing is deleted. Queues and exchanges that exist stay as they are, even if the document has others of
  their names. Users, vhosts, permissions, parameters and policies are set to the document's. So a second import of the
  same document changes nothing, and appends no event.
- The order, and the names that are left out (`amq.` at the beginning), are RabbitMQ's (rabbit_definitions.erl
  `apply_defs`).
- The import has the rights of the broker and the name of the user: it needs no permissions in vhosts.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from rewindmq.engine.broker import declarations, limits
from rewindmq.engine.broker.parameters import OPERATOR_POLICY, check_parameter
from rewindmq.engine.broker.policies import checked_definition
from rewindmq.engine.broker.users import check_patterns, hash_of_user, tags_from, tags_of_user
from rewindmq.engine.errors import AmqpError, PreconditionFailed, resource
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.host.slices import Pace
from rewindmq.engine.routing import exchange_types
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.machine.rules.policy_keys import DECLARABLE_TYPES
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import VHOST_LIMITS, system_exchanges
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.json_arguments import arguments_from, table_of
from rewindmq.schemas.json_values import Json
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import Actor, Argument

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

Item = dict[str, Json]
Step = Callable[[], Coroutine[Any, Any, object]]  # an action that was checked already
SERVER_NAMED = "amq."
# Releases that exported MD5 hashes without saying so (rabbit_auth_backend_internal.erl `hashing_algorithm/2`).
MD5_RELEASES = ("3.0.", "3.1.", "3.2.", "3.3.", "3.4.", "3.5.")

MOST_NAMED = 20  # errors in one answer
TOGETHER = 50  # queues, or bindings: they wait for the log once. The loop's time that they take is short

logger = logging.getLogger("rewindmq")


class Import:
    """An import of one document.

    `vhost`: it goes into this vhost only, which exists; None: it is a whole broker's. `actor`: the user who imports;
    the broker at boot. `until_free(vhost, queue)`: waits for a queue that moves to another partition; its error ends
    the import before anything has changed."""

    def __init__(
        self,
        broker: "Broker",
        actor: Actor,
        document: Json,
        vhost: str | None = None,
        until_free: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        if not isinstance(document, dict):
            raise PreconditionFailed("definitions must be a JSON object")
        self.broker = broker
        self.actor = actor
        self.document = document
        self.into = vhost
        self.until_free = until_free or broker.homes.wait_until_free
        self.topology = broker.topology
        # What the document adds to the topology, or changes in it.
        self.default_types: dict[str, str] = {}  # of each of its vhosts
        self.users: set[str] = set()
        self.exchanges: dict[tuple[str, str], ExchangeDeclared] = {}
        self.queues: set[tuple[str, str]] = set()
        self.queue_limits: dict[str, int] = {}
        self.steps: list[Step] = []  # one after the other, before the queues
        self.queue_steps: list[Step] = []
        self.binding_steps: list[Step] = []
        self.bound: set[str] = set()  # the bindings with arguments that are there, as an export has them
        self.wrong: list[str] = []  # the first errors, and how many there are
        self.wrong_count = 0
        self.work = Work(broker.host.loop_share)

    async def carry_out(self) -> None:
        """Check the whole document, then carry it out.

        Raises PreconditionFailed when anything in the document is wrong; nothing is changed then."""
        await self.broker.vhosts.until_deleted()  # their queues are still there, and do not count
        await self._enter()
        await self._judge()
        pace = Pace(self.broker.turns.written)
        for steps, together in ((self.steps, 1), (self.queue_steps, TOGETHER), (self.binding_steps, TOGETHER)):
            async for first in self.work.over(range(0, len(steps), together)):
                portion = steps[first : first + together]
                results = await asyncio.gather(*(step() for step in portion), return_exceptions=True)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                    await pace.changed()

    async def _enter(self) -> None:
        """Make sure that this node folds the partitions of the queues that the document names."""
        for category, name in (("queues", "name"), ("bindings", "destination")):
            items = self.document.get(category)
            async for item in self.work.over(items if isinstance(items, list) else []):
                vhost = self.into if self.into is not None or not isinstance(item, dict) else item.get("vhost")
                queue = item.get(name) if isinstance(item, dict) else None
                if isinstance(vhost, str) and isinstance(queue, str):  # else `_judge` says what is wrong
                    await self.until_free(vhost, queue)
                    await self.broker.queues.partition_for(vhost, queue).enter()

    # -- checking -----------------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        if self.into is None:
            await self._each("users", "user", self._user)
            await self._each("vhosts", "vhost", self._vhost)
            await self._each("permissions", "permissions of", self._permissions, name="user")
            await self._each("topic_permissions", "topic permissions of", self._topic_permissions, name="user")
        await self._each("exchanges", "exchange", self._exchange)
        if self.into is None:
            await self._each("global_parameters", "global parameter", self._global_parameter)
        await self._each("policies", "policy", self._policy)
        await self._each("parameters", "parameter", self._parameter)
        await self._each("queues", "queue", self._queue)
        if not self.wrong:
            await self._check_queue_limits()
        if self.document.get("bindings"):
            async for bound in self.broker.exchanges.bindings_by_source(self.work, self.topology.vhosts):
                if bound.arguments and self.broker.router.is_live(bound):
                    self.bound.add(_exported(bound))
        await self._each("bindings", "binding of", self._binding, name="source")
        if self.wrong:
            raise PreconditionFailed(self._all_that_is_wrong())

    async def _each(self, category: str, kind: str, judge: Callable[[Item], None], name: str = "name") -> None:
        items = self.document.get(category)
        if items is None:
            return
        if not isinstance(items, list):
            raise PreconditionFailed(f"{category} must be a list")
        async for item in self.work.over(items):
            if not isinstance(item, dict):
                raise PreconditionFailed(f"{category} must be a list of objects")
            try:
                with about(f"{kind} '{item.get(name)}'"):
                    judge(item)
            except PreconditionFailed as error:
                self.wrong_count += 1
                if len(self.wrong) < MOST_NAMED:
                    self.wrong.append(error.text)

    def _all_that_is_wrong(self) -> str:
        """The first error as it is, and the others in a line each."""
        first, *others = self.wrong
        if not others:
            return first
        lines = ["; ".join(line for line in each.splitlines() if line) for each in others]
        if self.wrong_count > len(self.wrong):
            lines.append(f"... and {self.wrong_count - len(self.wrong)} more")
        return "\n".join((first.rstrip("\n"), "", "Besides:", *lines, ""))

    def _user(self, item: Item) -> None:
        name, tags = text(item, "name"), tags_of_user(item)
        if not name:
            raise PreconditionFailed("a user's name cannot be empty")
        version = str(self.document.get("rabbitmq_version") or self.document.get("rabbit_version") or "")
        md5 = version.startswith(MD5_RELEASES)
        password_hash = hash_of_user(item, f"rabbit_password_hashing_{'md5' if md5 else 'sha256'}")
        password = "" if item.get("password") is None else text(item, "password")
        given = item.get("limits") or {}
        limits.checked_user_limits(given)
        self.users.add(name)

        async def step() -> None:
            if password_hash is not None:
                await self.broker.access.users.set_hash(self.actor, name, password_hash, tags)
            else:  # a password that is the same is no new one, though its hash would be
                same = password != "" and await self.broker.access.control.has_password(name, password)
                await self.broker.access.users.set(self.actor, name, None if same else password, tags)
            if isinstance(given, dict):
                known = self.topology.user_limits.get(name, {})
                await self.broker.access.users.set_limits(self.actor, name, known | given)

        self.steps.append(step)

    def _vhost(self, item: Item) -> None:
        name = text(item, "name")
        if not name:
            raise PreconditionFailed("a vhost's name cannot be empty")
        metadata = item.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise PreconditionFailed("metadata must be an object")
        described = metadata | {key: value for key, value in item.items() if value is not None}
        description = "" if described.get("description") is None else text(described, "description")
        tags = tags_from(described.get("tags") or [])
        kind = default_queue_type(described.get("default_queue_type"))
        self.default_types[name] = kind
        for system in system_exchanges(name):
            self.exchanges[name, system.exchange] = system

        async def step() -> None:
            new = name not in self.topology.vhosts
            await self.broker.vhosts.create(self.actor, name, description, tags, kind)
            if new and self.actor.user in self.topology.users:
                await self.broker.access.users.set_permissions(self.actor, name, self.actor.user, ".*", ".*", ".*")

        self.steps.append(step)

    def _permissions(self, item: Item) -> None:
        vhost, user = self._known_vhost(item), self._known_user(item)
        configure, write, read = (text(item, key) for key in ("configure", "write", "read"))
        check_patterns(configure, write, read)
        self.steps.append(
            lambda: self.broker.access.users.set_permissions(self.actor, vhost, user, configure, write, read)
        )

    def _topic_permissions(self, item: Item) -> None:
        vhost, user = self._known_vhost(item), self._known_user(item)
        exchange, write, read = (text(item, key) for key in ("exchange", "write", "read"))
        check_patterns(write, read)
        self.steps.append(
            lambda: self.broker.access.users.set_topic_permissions(self.actor, vhost, user, exchange, write, read)
        )

    def _exchange(self, item: Item) -> None:
        vhost, name = self._known_vhost(item), text(item, "name")
        if name == "" or name.startswith(SERVER_NAMED):
            return
        declared = ExchangeDeclared(
            vhost,
            name,
            type=text(item, "type"),
            durable=flag(item, "durable", True),
            auto_delete=flag(item, "auto_delete", False),
            internal=flag(item, "internal", False),
            arguments=arguments_from(item.get("arguments")),
        )
        if self._known_exchange(vhost, name) is not None:
            return
        exchange_types.check_type(declared.type)
        declarations.exchange_named_by("exchange", name, vhost, declared.arguments, "alternate-exchange")
        exchange_types.type_of(declared).check_arguments(declared)
        self.exchanges[vhost, name] = declared

        async def step() -> None:
            if (vhost, name) not in self.topology.exchanges:
                with self._session(vhost) as session:
                    await self.broker.exchanges.declare(
                        session,
                        name,
                        declared.type,
                        False,
                        declared.durable,
                        declared.auto_delete,
                        declared.internal,
                        declared.arguments,
                    )

        self.steps.append(step)

    def _global_parameter(self, item: Item) -> None:
        name, value = text(item, "name"), required(item, "value")
        self.steps.append(lambda: self.broker.parameters.set_global(self.actor, name, value))

    def _policy(self, item: Item) -> None:
        vhost, name = self._known_vhost(item), text(item, "name")
        asked: tuple[Any, Any, Any, Any] = (
            text(item, "pattern"),
            required(item, "definition"),
            item.get("priority", 0),
            item.get("apply-to", "all"),
        )
        version = self.broker.topology.machine_version
        checked_definition(name, *asked, False, self.broker.config.semantics, version)
        self.steps.append(lambda: self.broker.policies.set(self.actor, vhost, name, *asked))

    def _parameter(self, item: Item) -> None:
        vhost, component, name = self._known_vhost(item), text(item, "component"), text(item, "name")
        value = required(item, "value")
        if component == OPERATOR_POLICY and isinstance(value, dict):
            value = value | {"definition": from_pairs(value.get("definition"))}
        check_parameter(component, name, value)
        if component == OPERATOR_POLICY and isinstance(value, dict):
            asked = (value["pattern"], value["definition"], value["priority"], value.get("apply-to", "all"))
            version = self.broker.topology.machine_version
            checked_definition(name, *asked, True, self.broker.config.semantics, version)
        if (component, name) == VHOST_LIMITS and isinstance(value, dict):
            most = value.get("max-queues", -1)
            self.queue_limits[vhost] = most if isinstance(most, int) else -1
        self.steps.append(lambda: self.broker.parameters.set(self.actor, vhost, component, name, value))

    def _queue(self, item: Item) -> None:
        vhost, name = self._known_vhost(item), text(item, "name")
        if name.startswith(SERVER_NAMED):
            logger.warning("definitions: queue '%s' is left out: its name begins with 'amq.'", name)
            return
        if not name:
            raise PreconditionFailed("a queue's name cannot be empty")
        durable, auto_delete = flag(item, "durable", True), flag(item, "auto_delete", False)
        given_arguments = arguments_from(item.get("arguments"))
        if self.broker.queues.get(vhost, name) is not None or (vhost, name) in self.queues:
            return
        self._check_queue(vhost, name, durable, auto_delete, given_arguments)
        self.queues.add((vhost, name))

        async def step() -> None:
            if self.broker.queues.get(vhost, name) is None:
                with self._session(vhost) as session:
                    await self.broker.queues.declare(session, name, False, durable, False, auto_delete, given_arguments)

        self.queue_steps.append(step)

    def _check_queue(
        self, vhost: str, name: str, durable: bool, auto_delete: bool, given_arguments: tuple[Argument, ...]
    ) -> None:
        default = self.default_types.get(vhost)
        if default is None:
            known = self.topology.vhosts.get(vhost)
            default = "" if known is None else known.default_queue_type
        arguments = declarations.with_default_type(default, durable, False, auto_delete, given_arguments)
        declarations.exchange_named_by("queue", name, vhost, arguments, "x-dead-letter-exchange")
        kind, _ = self.broker.queues.check_arguments(vhost, name, arguments)
        declarations.check_queue_properties(vhost, name, kind, durable, False, auto_delete)

    async def _check_queue_limits(self) -> None:
        new: Counter[str] = Counter()
        async for vhost, _ in self.work.over(self.queues):
            new[vhost] += 1
        limited: dict[str, int] = {}
        async for vhost in self.work.over(sorted(new)):
            limit = self.queue_limits.get(vhost)
            if limit is None:
                limit = self.topology.vhost_limits(vhost).get("max-queues", -1)
            if limit >= 0:
                limited[vhost] = limit
        there: Counter[str] = Counter()
        if limited:
            await self.broker.queues.enter_all()
        for partition in self.broker.partitions if limited else ():
            async for vhost, name in self.work.over(list(partition.machine.by_name)):
                if vhost in limited and not is_hidden(name):
                    there[vhost] += 1
        for vhost, limit in limited.items():
            if there[vhost] + new[vhost] > limit:
                raise PreconditionFailed(
                    f'Adding {new[vhost]} queue(s) to virtual host "{vhost}" would exceed the limit of {limit}'
                    f" queue(s).\n\nThis virtual host currently has {there[vhost]} queue(s) defined.\n\n"
                    "Import aborted!"
                )

    def _binding(self, item: Item) -> None:
        vhost, source, destination = self._known_vhost(item), text(item, "source"), text(item, "destination")
        kind, key = text(item, "destination_type"), text(item, "routing_key")
        arguments = arguments_from(item.get("arguments"))
        if source == "":
            return
        exchange = self._known_exchange(vhost, source)
        if exchange is None:
            raise PreconditionFailed(f"there is no {resource('exchange', source, vhost)}")
        if kind == "queue":
            there = (vhost, destination) in self.queues or self.broker.queues.get(vhost, destination) is not None
            if not there and destination.startswith(SERVER_NAMED):
                logger.warning("definitions: a binding to queue '%s' is left out, as the queue is", destination)
                return
        elif kind == "exchange":
            there = self._known_exchange(vhost, destination) is not None and destination != ""
        else:
            raise PreconditionFailed(f"destination_type '{kind}' is neither queue nor exchange")
        if not there:
            raise PreconditionFailed(f"there is no {resource(kind, destination, vhost)}")
        exchange_types.matching_type(exchange).check_binding(key, arguments)
        if _exported(Bound(vhost, source, kind, destination, key, arguments)) in self.bound:
            return

        async def step() -> None:
            with self._session(vhost) as session:
                await self.broker.exchanges.bind(session, source, kind, destination, key, arguments)

        self.binding_steps.append(step)

    # -- shared by all checks ----------------------------------------------------------------------------------------

    def _known_vhost(self, item: Item) -> str:
        if self.into is not None:
            return self.into
        if item.get("vhost") is None:
            raise PreconditionFailed(
                "no vhost is named: these are definitions of a single virtual host, which are imported into one"
            )
        vhost = text(item, "vhost")
        if vhost not in self.default_types and vhost not in self.topology.vhosts:
            raise PreconditionFailed(f'Please create virtual host "{vhost}" prior to importing definitions.')
        return vhost

    def _known_user(self, item: Item) -> str:
        user = text(item, "user")
        if user not in self.users and user not in self.topology.users:
            raise PreconditionFailed(f"user '{user}' does not exist")
        return user

    def _known_exchange(self, vhost: str, name: str) -> ExchangeDeclared | None:
        return self.topology.exchanges.get((vhost, name)) or self.exchanges.get((vhost, name))

    @contextlib.contextmanager
    def _session(self, vhost: str) -> Iterator[Any]:
        session = self.broker.sessions.open_own(self.actor, vhost)
        try:
            yield session
        finally:
            self.broker.sessions.close(session)


def _exported(bound: Bound) -> str:
    """A binding as JSON tells it: an int32 is no other argument than an int64."""
    ends = bound.vhost, bound.source, bound.destination_type, bound.destination
    return canonical_json([*ends, bound.routing_key, table_of(bound.arguments)])


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
    """Put the place in the document before the text of an error."""
    try:
        yield
    except (AmqpError, PropertyError) as error:
        raise PreconditionFailed(f"{what}: {error}") from None


def required(item: Item, key: str) -> Json:
    """The value of a key that an entry must have. Raises PreconditionFailed."""
    if key not in item:
        raise PreconditionFailed(f"{key} is missing")
    return item[key]


def text(item: Item, key: str) -> str:
    """The text of a key that an entry must have. Raises PreconditionFailed."""
    value = required(item, key)
    if not isinstance(value, str):
        raise PreconditionFailed(f"{key} must be a string")
    if len(value.encode()) > 255 and key not in ("pattern", "configure", "write", "read", "description", "password"):
        raise PreconditionFailed(f"{key} is longer than 255 bytes")
    return value


def flag(item: Item, key: str, default: bool) -> bool:
    """The true or false of a key, or its default. Raises PreconditionFailed."""
    value = item.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise PreconditionFailed(f"{key} must be true or false")
    return value


def from_pairs(value: Json) -> Json:
    """A definition of an operator policy. `rabbitmqctl export_definitions` writes it as [[name, value], ...]."""
    if isinstance(value, list) and value and all(isinstance(each, list) and len(each) == 2 for each in value):
        pairs = [(each[0], each[1]) for each in value if isinstance(each, list)]
        if all(isinstance(name, str) for name, _ in pairs):
            return {str(name): setting for name, setting in pairs}
    return value


def default_queue_type(value: object) -> str:
    """A vhost's default queue type; "" for none, also for "undefined" in RabbitMQ's own exports.

    Raises PreconditionFailed for a type that does not exist."""
    if value in (None, "", "undefined"):
        return ""
    if not isinstance(value, str) or value not in DECLARABLE_TYPES:
        raise PreconditionFailed(f"Unsupported default queue type '{value}'")
    return value
