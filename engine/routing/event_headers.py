"""The events of the event exchange: their routing keys, and the facts in their headers.

    RabbitMQ's     queue.created  queue.deleted  queue.policy.updated  queue.policy.cleared
                   exchange.created  exchange.deleted  binding.created  binding.deleted
                   policy.set  policy.cleared  parameter.set  parameter.cleared  vhost.limits.set  vhost.limits.cleared
                   connection.created  connection.closed  user.authentication.success  user.authentication.failure
                   user.created  user.deleted  user.password.changed  user.password.cleared  user.tags.set
                   permission.created  permission.deleted  topic.permission.created  topic.permission.deleted
                   vhost.created  vhost.deleted  user.limits.set  alarm.set  alarm.cleared
    ours           queue.purged  access.refused
                   message.expired.{queue}  message.dropped.{queue}  message.rejected.{queue}  message.refused.{queue}
                   message.delivery_limit.{queue}  message.dead_lettered.{queue}  ack.{queue}

Rules of this file
- Names and headers are RabbitMQ's where it has the event (rabbit_exchange_type_event.erl, and the callers of
  `rabbit_event:notify`). Headers of ours stand beside them.
- An event that concerns a vhost is published in that vhost. Other events, and those about vhosts, are in `/`, for
  queues that were bound by a user with the tag administrator or monitoring (engine/broker/exchanges.py).
- No event has a password, a hash or the value of a parameter, which may hold a password.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rewindmq.engine.config import Config
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Forget, Quarantine, QueueGone, Refuse
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELAYED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    PURGED,
    REJECTED,
    RELOCATED,
)
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import DEFAULT_VHOST, VHOST_LIMITS, Topology
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionOpened
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.schemas.events import Event, PolicyApplied, Purged, QueueDeclared, SessionClosed
from rewindmq.schemas.metadata_events import (
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    GlobalParameterCleared,
    GlobalParameterSet,
    OperatorPolicyCleared,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    Unbound,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.values import BROKER, EPOCH_SHIFT, Actor

ITSELF: Final = "rmq-internal"  # RabbitMQ's name for the broker as the one who acts
BY: Final = "user_who_performed_action"
# First words of the keys that may match an event of a queue partition.
KINDS: Final = frozenset(("#", "*", "queue", "message", "ack"))
# Keys of events that concern the whole node, and are published in `/`. A user who binds to them needs one of the tags.
NODE_WIDE: Final = (
    "user.authentication.success",
    "user.authentication.failure",
    "user.created",
    "user.deleted",
    "user.password.changed",
    "user.password.cleared",
    "user.tags.set",
    "user.limits.set",
    "vhost.created",
    "vhost.deleted",
    "alarm.set",
    "alarm.cleared",
)
NODE_WIDE_TAGS: Final = ("administrator", "monitoring")
MESSAGES: Final = {
    EXPIRED: "message.expired.",
    MAXLEN: "message.dropped.",
    REJECTED: "message.rejected.",
    DELIVERY_LIMIT: "message.delivery_limit.",
    ACKED: "ack.",
}

Facts = dict[str, object]
Described = tuple[str, str, Facts]  # vhost, routing key, headers


def first_word(key: str) -> str:
    """Return the first word of a binding key."""
    return key.split(".", 1)[0]


def by(actor: Actor) -> str:
    """Return the name of the one who acts, in RabbitMQ's words."""
    return actor.user or ITSELF


def given(actor: Actor) -> Facts:
    """Return the header with the reason that the actor gave, if it gave one."""
    return {"why": actor.reason} if actor.reason else {}


def done(actor: Actor) -> Facts:
    """Return the headers that say who acts, and why."""
    return {BY: by(actor), **given(actor)}


# -- of a queue partition ---------------------------------------------------------------------------------------------


class QueueNews:
    """An outcome for some messages of a queue. `facts`: headers that only this outcome has."""

    def __init__(
        self, kind: str, queue: Queue, message_ids: Sequence[int], reason: str, rule: str, user: str, facts: Facts
    ) -> None:
        self.key = kind + queue.name
        self.queue = queue
        self.message_ids = message_ids
        self.reason = reason
        self.rule = rule
        self.user = user
        self.facts = facts

    def headers(self) -> Facts:
        """Return the headers, without the message's id."""
        queue = self.queue
        headers: Facts = {"queue": queue.name, "vhost": queue.vhost, "reason": self.reason, BY: self.user}
        if self.rule:
            headers["rule"] = self.rule
        holder = queue.holders.get(int(str(self.facts.get("consumer", 0))))
        if holder is not None and holder.tag:
            headers["consumer_tag"] = holder.tag
        return headers | self.facts


def message_news(effect: Effect, actor: Actor) -> QueueNews | None:
    """Return the outcome for messages that an effect is; None: it is none that is told. `actor`: of the event that
    caused it.

    Time makes messages expire, and nobody else. Retention of a stream is not told."""
    if isinstance(effect, Forget):
        kind = MESSAGES.get(effect.reason)
        if kind is None or effect.queue.stream:
            return None
        facts: Facts = {}
        if effect.consumer:
            facts = {"consumer": effect.consumer, "session": actor.session}
        user = ITSELF if effect.reason == EXPIRED else by(actor)
        return QueueNews(kind, effect.queue, effect.message_ids, effect.reason, effect.rule, user, facts)
    if isinstance(effect, Refuse):
        ids = (effect.message_id,)
        return QueueNews("message.refused.", effect.queue, ids, MAXLEN, effect.rule, by(actor), {})
    if isinstance(effect, DeadLetter) and effect.reason not in (DELAYED, RELOCATED):
        facts = {"exchange": effect.exchange}
        if effect.routing_key is not None:
            facts["routing_key"] = effect.routing_key
        user = ITSELF if effect.reason == EXPIRED else by(actor)
        return QueueNews("message.dead_lettered.", effect.queue, effect.message_ids, effect.reason, "", user, facts)
    return None


def queue_news(
    machine: Machine, offset: int, actor: Actor, event: Event, effects: Sequence[Effect], before: int
) -> Iterator[Described]:
    """Yield the changes that an event made to queues.

    `machine` has just applied the event, whose effects are those from `before` on."""
    for at in range(before, len(effects)):
        effect = effects[at]
        if isinstance(effect, QueueGone) and not is_hidden(effect.queue.name):
            who = done(BROKER if effect.reason == EXPIRED else actor)
            facts = {**named(effect.queue), "reason": effect.reason, "messages": effect.messages, **who}
            yield effect.queue.vhost, "queue.deleted", facts
    if not isinstance(event, QueueDeclared | PolicyApplied | Purged) or is_hidden(event.queue):
        return
    queue = machine.queue(event.vhost, event.queue)
    if queue is None or any(isinstance(effects[at], Quarantine) for at in range(before, len(effects))):
        return
    if isinstance(event, QueueDeclared):
        if queue.queue_id == offset and event.moved_from is None:
            yield queue.vhost, "queue.created", {**declared(queue), **done(actor)}
    elif isinstance(event, Purged):
        forgotten = (effects[at] for at in range(before, len(effects)))
        messages = sum(
            len(each.message_ids) for each in forgotten if isinstance(each, Forget) and each.reason == PURGED
        )
        yield queue.vhost, "queue.purged", {**named(queue), "messages": messages, **done(actor)}
    else:
        yield policy_news(queue, event, actor)


def policy_news(queue: Queue, event: PolicyApplied, actor: Actor) -> Described:
    """Return the change that a policy made to a queue."""
    facts: Facts = {**named(queue), **done(actor)}
    for policy, name in ((event.policy, "policy"), (event.operator_policy, "operator_policy")):
        if policy is not None:
            facts[name] = policy.name
            facts[f"{name}_definition"] = policy.definition
    cleared = event.policy is None and event.operator_policy is None
    return queue.vhost, "queue.policy.cleared" if cleared else "queue.policy.updated", facts


def named(queue: Queue) -> Facts:
    """Name, vhost and type of a queue."""
    return {"name": queue.name, "vhost": queue.vhost, "type": queue.type}


def declared(queue: Queue) -> Facts:
    """Return the properties with which a queue was declared."""
    return {
        **named(queue),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": table_of(queue.arguments),
    }


# -- of the metadata log ----------------------------------------------------------------------------------------------


class MetadataNews:
    """Says what events of the metadata log change. It knows the connections that this node has opened."""

    def __init__(self, config: Config, topology: Topology) -> None:
        self._config = config
        self._topology = topology
        self._connections: dict[int, tuple[str, str]] = {}  # vhost and name, by session id, of one epoch

    def of(self, actor: Actor, event: Event) -> list[Described]:
        """Return the changes that an event will make once it is folded."""
        if isinstance(event, SessionOpened | SessionClosed | LoginRefused | AccessRefused):
            return self._access(actor, event)
        if isinstance(event, UserSet | UserDeleted | UserLimitsSet):
            return [
                (DEFAULT_VHOST, key, {"name": name, **done(actor), **facts}) for key, name, facts in self._user(event)
            ]
        if isinstance(event, VhostCreated | VhostDeleted):
            return self._vhost(actor, event)
        found = self._exchanges(event) or self._rights(event) or self._settings(event)
        return [] if found is None else [(found[0], found[1], {**found[2], **done(actor)})]

    def _access(
        self, actor: Actor, event: SessionOpened | SessionClosed | LoginRefused | AccessRefused
    ) -> list[Described]:
        if isinstance(event, SessionClosed):
            known = self._connections.pop(event.session, None)
            if known is None:
                return []
            return [(known[0], "connection.closed", {"name": known[1], **self._closed(actor, event, known[0])})]
        if isinstance(event, SessionOpened):
            return self._opened(actor, event)
        if isinstance(event, LoginRefused):
            facts: Facts = {
                "name": event.user,
                "peer_host": event.host,
                "protocol": event.protocol,
                "auth_mechanism": event.mechanism,
                "error": event.reason,
                "count": event.count,
            }
            return [(DEFAULT_VHOST, "user.authentication.failure", facts)]
        facts = {"operation": event.operation, "kind": event.kind, "name": event.name, "vhost": event.vhost}
        facts |= {"error": event.reason, "count": event.count, "session": actor.session, BY: by(actor)}
        return [(event.vhost or DEFAULT_VHOST, "access.refused", facts)]

    def _closed(self, actor: Actor, event: SessionClosed, vhost: str) -> Facts:
        return {"user": actor.user, "vhost": vhost, "node": self._config.node, "session": event.session, **given(actor)}

    def _opened(self, actor: Actor, event: SessionOpened) -> list[Described]:
        name = self._config.both_ends(event.address)
        host, _, port = event.address.rpartition(":")
        facts: Facts = {
            "user": actor.user,
            "vhost": event.vhost,
            "node": self._config.node,
            "session": event.session,
            "peer_host": host.removeprefix("[").removesuffix("]"),
            "protocol": event.protocol,
            "auth_mechanism": event.mechanism,
            "ssl": event.tls != "",
        }
        if port.isdigit():
            facts["peer_port"] = int(port)
        success = {"name": actor.user, "connection_name": name, **facts}
        found: list[Described] = [(DEFAULT_VHOST, "user.authentication.success", success)]
        if event.protocol == "amqp":
            self._remember(event.session, event.vhost, name)
            properties = table_of(event.client_properties)
            found.append((event.vhost, "connection.created", {"name": name, "client_properties": properties, **facts}))
        return found

    def _remember(self, session: int, vhost: str, name: str) -> None:
        if self._connections and next(iter(self._connections)) >> EPOCH_SHIFT != session >> EPOCH_SHIFT:
            self._connections.clear()  # their epoch is over, and with it their sessions
        self._connections[session] = (vhost, name)

    def _user(self, event: UserSet | UserDeleted | UserLimitsSet) -> Iterator[tuple[str, str, Facts]]:
        if isinstance(event, UserLimitsSet):
            yield "user.limits.set", "limits", {"username": event.user, "definition": event.definition}
            return
        known = self._topology.users.get(event.name)
        if isinstance(event, UserDeleted):
            if known is not None:
                yield "user.deleted", event.name, {}
            return
        if known is None:
            yield "user.created", event.name, {}
        elif known.password_hash != event.password_hash:
            yield "user.password.changed" if event.password_hash else "user.password.cleared", event.name, {}
        if (known.tags if known else ()) != event.tags:
            yield "user.tags.set", event.name, {"tags": list(event.tags)}

    def _vhost(self, actor: Actor, event: VhostCreated | VhostDeleted) -> list[Described]:
        known = event.vhost in self._topology.vhosts
        if known is isinstance(event, VhostCreated):
            return []
        facts: Facts = {"name": event.vhost, **done(actor)}
        if isinstance(event, VhostDeleted):
            return [(DEFAULT_VHOST, "vhost.deleted", facts)]
        facts |= {
            "description": event.description,
            "tags": list(event.tags),
            "default_queue_type": event.default_queue_type,
        }
        return [(DEFAULT_VHOST, "vhost.created", facts)]

    def _exchanges(self, event: Event) -> Described | None:
        if isinstance(event, ExchangeDeclared | ExchangeDeleted):
            facts: Facts = {"name": event.exchange, "vhost": event.vhost}
            known = (event.vhost, event.exchange) in self._topology.exchanges
            if known is isinstance(event, ExchangeDeclared):
                return None
            if isinstance(event, ExchangeDeleted):
                return event.vhost, "exchange.deleted", facts
            facts |= {"type": event.type, "durable": event.durable, "auto_delete": event.auto_delete}
            facts |= {"internal": event.internal, "arguments": table_of(event.arguments)}
            return event.vhost, "exchange.created", facts
        if isinstance(event, Bound | Unbound):
            return (
                event.vhost,
                "binding.created" if isinstance(event, Bound) else "binding.deleted",
                {
                    "source_name": event.source,
                    "source_kind": "exchange",
                    "destination_name": event.destination,
                    "destination_kind": event.destination_type,
                    "routing_key": event.routing_key,
                    "vhost": event.vhost,
                    "arguments": table_of(event.arguments),
                },
            )
        return None

    def _rights(self, event: Event) -> Described | None:
        if isinstance(event, PermissionsSet | TopicPermissionsSet):
            facts: Facts = {"user": event.user, "vhost": event.vhost, "write": event.write, "read": event.read}
            if isinstance(event, PermissionsSet):
                return event.vhost, "permission.created", {**facts, "configure": event.configure}
            return event.vhost, "topic.permission.created", {**facts, "exchange": event.exchange}
        if isinstance(event, PermissionsCleared | TopicPermissionsCleared):
            kind = "permission" if isinstance(event, PermissionsCleared) else "topic.permission"
            return event.vhost, f"{kind}.deleted", {"user": event.user, "vhost": event.vhost}
        return None

    def _settings(self, event: Event) -> Described | None:
        if isinstance(event, PolicySet | OperatorPolicySet):
            facts: Facts = {"name": event.name, "vhost": event.vhost, "pattern": event.pattern}
            facts |= {"apply-to": event.apply_to, "priority": event.priority, "definition": event.definition}
            return event.vhost, "policy.set", {**facts, "operator": isinstance(event, OperatorPolicySet)}
        if isinstance(event, PolicyCleared):
            return event.vhost, "policy.cleared", {"name": event.name, "vhost": event.vhost}
        if isinstance(event, OperatorPolicyCleared):
            return event.vhost, "operator.policy.cleared", {"name": event.name, "vhost": event.vhost}
        if isinstance(event, GlobalParameterSet | GlobalParameterCleared):
            key = "parameter.set" if isinstance(event, GlobalParameterSet) else "parameter.cleared"
            return DEFAULT_VHOST, key, {"component": "global", "name": event.name}
        if isinstance(event, ParameterSet | ParameterCleared):
            done = "set" if isinstance(event, ParameterSet) else "cleared"
            facts = {"name": event.name, "vhost": event.vhost}
            if (event.component, event.name) == VHOST_LIMITS:
                return event.vhost, f"vhost.limits.{done}", facts
            return event.vhost, f"parameter.{done}", {**facts, "component": event.component}
        return None
