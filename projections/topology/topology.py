"""The topology: vhosts, users, permissions, limits, parameters, exchanges, bindings, policies and nodes.

It is the fold of the metadata log.

Rules of this file
- Pure like the machine: `apply(offset, timestamp_ms, actor, event)` has no clock and no I/O; the broker, recovery and
  Spark fold the same events. It raises only NewerHistory. A senseless event (an unbinding of a missing binding) changes
  nothing. Neither does an event that no broker writes and no reader could read later (a parameter that is not JSON),
  for which `apply` returns the reason.
- A stored topology (fold_image.py) follows the rules of one `TOPOLOGY_VERSION`. A changed rule or a new kind of state
  needs a new version, so that older stored states are ignored and the log is folded from its beginning.
- Queues are not here: a queue lives in its own partition's machine. A binding names its queue and the queue's
  incarnation. When that incarnation is deleted, the binding is dead, even if a new queue has the same name, and the
  broker removes it (`Unbound`).
- Each item is kept as the event that made it. Two kinds exist without an event: the vhost `/`, and in every vhost the
  exchanges that AMQP demands (`SYSTEM_EXCHANGES`).
- A broker's start (`BrokerStarted`) deletes exchanges that are not durable, and the bindings from and to them. If nodes
  share the log, these are deleted when the last node is gone, which the fold sees when the next node joins.
- An auto-delete exchange is deleted with the last binding from it (rabbit_binding.erl `maybe_auto_delete_exchange`),
  along with the bindings to it, which may be the last bindings of other such exchanges. The fold derives this, so there
  is no event. An auto-delete exchange that never had a binding stays.
- Permissions, limits and parameters are deleted with their vhost or user. A topic permission may name an exchange that
  does not exist (rabbit_auth_backend_internal.erl `set_topic_permissions`).
- The state does not depend on the names that a policy's pattern matches, only on whether the pattern is valid: the
  policy that applies to a queue is an event of the queue's partition.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from typing import Any, get_args

from rewindmq.projections.machine.rules.policy_keys import DECLARABLE_TYPES
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.machine.state import NewerHistory
from rewindmq.projections.rules.patterns import problem_in_history
from rewindmq.projections.topology.about_history import AboutHistory, Erasure
from rewindmq.projections.topology.bindings import Bindings
from rewindmq.projections.topology.json_texts import Limits, Nonsense, limits_in, require_json
from rewindmq.projections.topology.placement import Placement
from rewindmq.projections.topology.policies import PolicyRule, highest, highest_for_queue
from rewindmq.schemas.access_events import AccessEvent
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.events import BrokerStarted, Event, MachineUpgraded, NodeLost, PastRead, SessionClosed
from rewindmq.schemas.metadata_events import (
    BodiesExpired,
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    GlobalParameterCleared,
    GlobalParameterSet,
    HistoryForked,
    HistoryTrimmed,
    MarkDeleted,
    MarkSet,
    NodeJoined,
    OperatorPolicyCleared,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    SubjectErased,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    Unbound,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.placement_events import PlacementEvent, QueueMoveEnded
from rewindmq.schemas.values import Actor, Policy

TOPOLOGY_VERSION = 1
DEFAULT_VHOST = "/"
VHOST_LIMITS = ("vhost-limits", "limits")  # component and name of the parameter that holds a vhost's limits
EPOCHS_REMEMBERED = 500
SYSTEM_EXCHANGES = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.rabbitmq.trace", "topic"),
    ("amq.rewindmq.event", "topic"),
    ("amq.topic", "topic"),
)
# The broker publishes to these (engine/routing/firehose.py, event_exchange.py), and clients cannot.
INTERNAL = TRACE_EXCHANGE, EVENT_EXCHANGE = "amq.rabbitmq.trace", "amq.rewindmq.event"


def system_exchanges(vhost: str) -> list[ExchangeDeclared]:
    """Return the exchanges of a new vhost."""
    return [
        ExchangeDeclared(vhost, name, kind, durable=True, auto_delete=False, internal=name in INTERNAL)
        for name, kind in SYSTEM_EXCHANGES
    ]


class Topology:
    """The folded state of the metadata log. See the attributes."""

    next_offset: int
    # Keys with a vhost: (vhost, name), permissions (vhost, user), topic permissions (vhost, user, exchange), parameters
    # (vhost, component, name).
    vhosts: dict[str, VhostCreated]
    users: dict[str, UserSet]
    permissions: dict[tuple[str, str], PermissionsSet]
    topic_permissions: dict[tuple[str, str, str], TopicPermissionsSet]
    parameters: dict[tuple[str, str, str], ParameterSet]
    global_parameters: dict[str, GlobalParameterSet]
    user_limits: dict[str, Limits]  # only users that have limits
    exchanges: dict[tuple[str, str], ExchangeDeclared]
    policies: dict[tuple[str, str], PolicySet]
    operator_policies: dict[tuple[str, str], OperatorPolicySet]
    marks: dict[str, MarkSet]
    marked: dict[str, tuple[int, str]]  # mark -> its time in milliseconds, and the user who set it
    erasures: list[Erasure]
    erased_keys: dict[str, int]  # key id -> offset of the event of its destruction
    history: AboutHistory
    placement: Placement
    nodes: dict[int, NodeJoined]  # the live nodes, by epoch
    ended: dict[int, str]  # past epochs -> node; the last EPOCHS_REMEMBERED
    had_permissions: bool  # some user once had permissions, so the first user was made
    deleted_vhosts: dict[str, None]  # deleted, and not created again
    machine_version: int  # of the history; an operator raises it (MachineUpgraded)
    ahead_ms: int  # the lead of the queues' clock over the time in the log (ClockSet)
    clock_stepped: ClockStepped | None  # the last one since the clock was set

    def __init__(self) -> None:
        self.next_offset = 0
        self.vhosts = {}
        self.users = {}
        self.permissions = {}
        self.topic_permissions = {}
        self.parameters = {}
        self.global_parameters = {}
        self.user_limits = {}
        self.exchanges = {}
        self.policies = {}
        self.operator_policies = {}
        self.marks = {}
        self.marked = {}
        self.erasures = []
        self.erased_keys = {}
        self.history = AboutHistory()
        self.placement = Placement()
        self.nodes = {}
        self.ended = {}
        self.had_permissions = False
        self.deleted_vhosts = {}
        self.machine_version = 1
        self.ahead_ms = 0
        self.clock_stepped = None
        self._bindings = Bindings()
        self._rules: dict[str, dict[str, PolicyRule]] = {}  # vhost -> policy name -> rule
        self._operator_rules: dict[str, dict[str, PolicyRule]] = {}
        self._create_vhost(VhostCreated(DEFAULT_VHOST, "Default virtual host"))

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return the number of items of the frequent kinds."""
        few = len(self.users) + len(self.permissions) + len(self.parameters)
        return len(self._bindings.all) + len(self.exchanges) + few

    def bindings(self, vhost: str | None = None) -> Iterator[Bound]:
        """Yield a vhost's bindings (None: all), by source, then in order of binding; not the default exchange's."""
        for (home, _source), bindings in sorted(self._bindings.by_source.items()):
            if vhost in (None, home):
                yield from bindings

    def bindings_in_order(self) -> list[Bound]:
        """Return all bindings, in the order of binding."""
        return list(self._bindings.all)

    def bindings_from(self, vhost: str, source: str) -> tuple[Bound, ...]:
        """Return the bindings of an exchange, in the order of binding."""
        return tuple(self._bindings.by_source.get((vhost, source), ()))

    def watch_bindings(self, watcher: Callable[[Bound, bool], None]) -> None:
        """Call the watcher for each binding that is added (True) or removed (False) from now on."""
        self._bindings.watcher = watcher

    def followers(self, vhost: str, source: str) -> list[str]:
        """Return the exchanges that are bound to an exchange, in the order of binding."""
        return [bound.destination for bound in self._bindings.to_exchanges.get((vhost, source), ())]

    def bindings_to(self, vhost: str, destination_type: str, destination: str) -> tuple[Bound, ...]:
        """Return the bindings to a queue or an exchange, in the order of binding."""
        return tuple(self._bindings.by_destination.get((vhost, destination_type, destination), ()))

    def queue_bindings(self) -> Iterator[Bound]:
        """Yield every binding to a queue, in the order of binding."""
        return (bound for bound in list(self._bindings.all) if bound.destination_type == "queue")

    def bound_queues(self) -> Iterator[tuple[str, str]]:
        """Yield vhost and name of every queue that has bindings, whether the queue exists or not."""
        for vhost, destination_type, name in list(self._bindings.by_destination):
            if destination_type == "queue":
                yield vhost, name

    def is_bound(self, binding: Bound) -> bool:
        """Return True if exactly this binding exists."""
        return binding in self._bindings.all

    def effective_policy(self, vhost: str, queue: str, queue_type: str) -> Policy | None:
        """Return the policy that applies to a queue of this name and type; None if none does."""
        return highest_for_queue(self._rules.get(vhost, {}), queue, queue_type)

    def effective_operator_policy(self, vhost: str, queue: str, queue_type: str) -> Policy | None:
        """Return the operator policy that applies to a queue of this name and type; None if none does."""
        return highest_for_queue(self._operator_rules.get(vhost, {}), queue, queue_type)

    def effective_exchange_policy(self, vhost: str, exchange: str) -> Policy | None:
        """Return the policy that applies to an exchange; None if none does."""
        return highest([rule for rule in self._rules.get(vhost, {}).values() if rule.fits_exchange(exchange)])

    def default_queue_type(self, vhost: str) -> str:
        """Return the type of queues declared without x-queue-type; empty: classic, or the vhost is gone."""
        known = self.vhosts.get(vhost)
        return "" if known is None else known.default_queue_type

    def vhost_limits(self, vhost: str) -> Limits:
        """Return the limits that are set for a vhost, by name."""
        parameter = self.parameters.get((vhost, *VHOST_LIMITS))
        return {} if parameter is None else limits_in(parameter.value)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the whole topology, in a canonical order.

        `next_offset` is not part of it, versions of policies are."""
        state: dict[str, Any] = {
            "vhosts": [asdict(self.vhosts[name]) for name in sorted(self.vhosts)],
            "users": [asdict(self.users[name]) for name in sorted(self.users)],
            "permissions": [asdict(self.permissions[key]) for key in sorted(self.permissions)],
            "topic_permissions": [asdict(self.topic_permissions[key]) for key in sorted(self.topic_permissions)],
            "parameters": [asdict(self.parameters[key]) for key in sorted(self.parameters)],
            "global_parameters": [asdict(self.global_parameters[name]) for name in sorted(self.global_parameters)],
            "user_limits": self.user_limits,
            "exchanges": [asdict(self.exchanges[key]) for key in sorted(self.exchanges)],
            "bindings": [
                [asdict(bound) for bound in self._bindings.by_source[key]] for key in sorted(self._bindings.by_source)
            ],
            "policies": [
                [vhost, asdict(rule.event), rule.policy.version]
                for rules in (self._rules, self._operator_rules)
                for vhost in sorted(rules)
                for _, rule in sorted(rules[vhost].items())
            ],
            "marks": [asdict(self.marks[name]) for name in sorted(self.marks)],
            "erased_keys": self.erased_keys,
            "nodes": [[epoch, asdict(self.nodes[epoch])] for epoch in sorted(self.nodes)],
            "history": self.history.for_digest(),
            "placement": self.placement.for_digest(),
            "machine_version": self.machine_version,
        }
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), default=bytes.hex, allow_nan=True)
        return hashlib.sha256(text.encode()).hexdigest()

    # -- folding --------------------------------------------------------------------------------------------------

    def apply(self, offset: int, timestamp_ms: int, actor: Actor, event: Event) -> str:
        """Apply an event. Return the reason if it is nonsense and was skipped, otherwise ""."""
        self.next_offset = offset + 1
        handler = HANDLERS.get(type(event))
        if handler is None:
            return "not an event of the metadata log"
        try:
            handler(self, offset, event)
            if isinstance(event, PlacementEvent):
                self._place(timestamp_ms, event)
        except Nonsense as nonsense:
            return str(nonsense)
        if isinstance(event, MarkSet):
            self.marked[event.name] = timestamp_ms, actor.user
        if isinstance(event, SubjectErased):
            erased = Erasure(offset, timestamp_ms, actor.user, event.subject, event.key_ids, event.reason)
            self.erasures.append(erased)
        if isinstance(event, HistoryTrimmed | HistoryForked | BodiesExpired):
            self.history.apply(offset, timestamp_ms, actor.user, event)
        return ""

    def on_bound(self, offset: int, event: Bound) -> None:
        """Add a binding, unless its source is gone."""
        if (event.vhost, event.source) in self.exchanges:
            self._bindings.add(event)

    def on_unbound(self, offset: int, event: Unbound) -> None:
        """Remove a binding, and an auto-delete exchange with the last binding from it."""
        bound = Bound(*(getattr(event, field.name) for field in fields(event)))  # the fields are the same
        if self._bindings.remove(bound):
            self._delete_if_unbound([(event.vhost, event.source)])

    def on_exchange_declared(self, offset: int, event: ExchangeDeclared) -> None:
        """Add an exchange. One that exists stays as it is."""
        if event.vhost in self.vhosts:
            self.exchanges.setdefault((event.vhost, event.exchange), event)

    def on_exchange_deleted(self, offset: int, event: ExchangeDeleted) -> None:
        """Delete an exchange, and auto-delete exchanges that thereby lose their last binding."""
        self._delete_if_unbound(self._delete_exchange(event.vhost, event.exchange))

    def on_broker_started(self, offset: int, event: BrokerStarted) -> None:
        """Delete everything that is not durable."""
        self._end_what_is_not_durable()

    def on_node_joined(self, offset: int, event: NodeJoined) -> None:
        """Add a node. A node lives only once, so its earlier epoch is over."""
        for epoch in [epoch for epoch, joined in self.nodes.items() if joined.node == event.node]:
            self._end_epoch(epoch)
        if not self.nodes:
            self._end_what_is_not_durable()
        self.nodes[offset] = event

    def on_node_lost(self, offset: int, event: NodeLost) -> None:
        """End the node's epoch."""
        self._end_epoch(event.epoch)

    def on_upgraded(self, offset: int, event: MachineUpgraded) -> None:
        """Let the history follow another machine version. Versions only ascend.

        Raises NewerHistory when this code does not know the version."""
        if event.machine_version > MACHINE_VERSION:
            raise NewerHistory("the metadata log", offset, event.machine_version)
        self.machine_version = max(self.machine_version, event.machine_version)

    def _end_epoch(self, epoch: int) -> None:
        joined = self.nodes.pop(epoch, None)
        if joined is not None:
            self.ended[epoch] = joined.node
            if len(self.ended) > EPOCHS_REMEMBERED:
                del self.ended[next(iter(self.ended))]

    def _end_what_is_not_durable(self) -> None:
        """Delete the exchanges that are not durable. Durable ones stay as they were, bound or not."""
        for (vhost, name), exchange in list(self.exchanges.items()):
            if not exchange.durable:
                self._delete_exchange(vhost, name)

    def on_nothing(self, offset: int, event: Event) -> None:
        """Change nothing, because `apply` has noted the event, or it only concerns readers of the history."""

    def on_policy_set(self, offset: int, event: PolicySet) -> None:
        """Set a policy, with its compiled pattern."""
        rule = self._rule(offset, event)
        if rule is not None:
            self.set_rule(rule)

    def on_policy_cleared(self, offset: int, event: PolicyCleared) -> None:
        """Remove a policy."""
        self.policies.pop((event.vhost, event.name), None)
        self._rules.get(event.vhost, {}).pop(event.name, None)

    def on_operator_policy_set(self, offset: int, event: OperatorPolicySet) -> None:
        """Set an operator policy, with its compiled pattern."""
        rule = self._rule(offset, event)
        if rule is not None:
            self.set_rule(rule)

    def on_operator_policy_cleared(self, offset: int, event: OperatorPolicyCleared) -> None:
        """Remove an operator policy."""
        self.operator_policies.pop((event.vhost, event.name), None)
        self._operator_rules.get(event.vhost, {}).pop(event.name, None)

    def on_vhost_created(self, offset: int, event: VhostCreated) -> None:
        """Create a vhost, or change one that exists. Raises Nonsense for an unknown queue type."""
        if event.default_queue_type not in ("", *DECLARABLE_TYPES):
            raise Nonsense(f"vhost {event.vhost!r}: there is no queue type {event.default_queue_type!r}")
        self._create_vhost(event)

    def on_vhost_deleted(self, offset: int, event: VhostDeleted) -> None:
        """Delete a vhost with everything in it."""
        self._delete_vhost(event.vhost)

    def on_user_set(self, offset: int, event: UserSet) -> None:
        """Create a user, or change one that exists."""
        self.users[event.name] = event

    def on_user_deleted(self, offset: int, event: UserDeleted) -> None:
        """Delete a user with its limits and permissions."""
        self.users.pop(event.name, None)
        self.user_limits.pop(event.name, None)
        for permissions in (self.permissions, self.topic_permissions):
            _drop(permissions, event.name, position=1)

    def on_user_limits_set(self, offset: int, event: UserLimitsSet) -> None:
        """Replace the limits of a user."""
        limits = limits_in(event.definition)
        if limits and event.user in self.users:
            self.user_limits[event.user] = limits
        else:
            self.user_limits.pop(event.user, None)

    def on_permissions_set(self, offset: int, event: PermissionsSet) -> None:
        """Set a user's permissions, if the vhost and the user exist."""
        if event.vhost in self.vhosts and event.user in self.users:
            self.permissions[event.vhost, event.user] = event
            self.had_permissions = True

    def on_permissions_cleared(self, offset: int, event: PermissionsCleared) -> None:
        """Remove a user's permissions in a vhost."""
        self.permissions.pop((event.vhost, event.user), None)

    def on_topic_permissions_set(self, offset: int, event: TopicPermissionsSet) -> None:
        """Set a user's topic permissions, if the vhost and the user exist."""
        if event.vhost in self.vhosts and event.user in self.users:
            self.topic_permissions[event.vhost, event.user, event.exchange] = event

    def on_topic_permissions_cleared(self, offset: int, event: TopicPermissionsCleared) -> None:
        """Remove a user's topic permissions on an exchange."""
        self.topic_permissions.pop((event.vhost, event.user, event.exchange), None)

    def on_parameter_set(self, offset: int, event: ParameterSet) -> None:
        """Set a parameter of a vhost that exists. Raises Nonsense if the value is not JSON."""
        require_json(f"parameter {event.name!r}", event.value)
        if event.vhost in self.vhosts:
            self.parameters[event.vhost, event.component, event.name] = event

    def on_parameter_cleared(self, offset: int, event: ParameterCleared) -> None:
        """Remove a parameter of a vhost."""
        self.parameters.pop((event.vhost, event.component, event.name), None)

    def on_global_parameter_set(self, offset: int, event: GlobalParameterSet) -> None:
        """Set a global parameter. Raises Nonsense if the value is not JSON."""
        require_json(f"global parameter {event.name!r}", event.value)
        self.global_parameters[event.name] = event

    def on_global_parameter_cleared(self, offset: int, event: GlobalParameterCleared) -> None:
        """Remove a global parameter."""
        self.global_parameters.pop(event.name, None)

    def on_keys_destroyed(self, offset: int, event: SubjectErased | BodiesExpired) -> None:
        """Note the destroyed keys. The first event that names a key counts."""
        for key_id in event.key_ids:
            self.erased_keys.setdefault(key_id, offset)

    def on_mark_set(self, offset: int, event: MarkSet) -> None:
        """Set a mark, or move one that exists."""
        self.marks[event.name] = event

    def on_mark_deleted(self, offset: int, event: MarkDeleted) -> None:
        """Remove a mark."""
        self.marks.pop(event.name, None)
        self.marked.pop(event.name, None)

    def on_clock_stepped(self, offset: int, event: ClockStepped) -> None:
        """Remember the last difference between the clocks."""
        self.clock_stepped = event

    def on_clock_set(self, offset: int, event: ClockSet) -> None:
        """Set the lead of the queues' clock over the time in the log."""
        self.ahead_ms = event.ahead_ms
        self.clock_stepped = None

    def _create_vhost(self, event: VhostCreated) -> None:
        self.vhosts[event.vhost] = event
        self.deleted_vhosts.pop(event.vhost, None)
        for system in system_exchanges(event.vhost):
            self.exchanges.setdefault((event.vhost, system.exchange), system)

    def _delete_vhost(self, vhost: str) -> None:
        if self.vhosts.pop(vhost, None) is not None:
            self.deleted_vhosts[vhost] = None
        self._rules.pop(vhost, None)
        self._operator_rules.pop(vhost, None)
        _drop(self.permissions, vhost)
        _drop(self.topic_permissions, vhost)
        _drop(self.parameters, vhost)
        _drop(self.exchanges, vhost)
        _drop(self.policies, vhost)
        _drop(self.operator_policies, vhost)
        self._bindings.drop_vhost(vhost)

    def _place(self, timestamp_ms: int, event: PlacementEvent) -> None:
        """Note a placement event. The bindings of a queue that has moved name its new incarnation."""
        moving = self.placement.moving.get((event.vhost, event.queue)) if isinstance(event, QueueMoveEnded) else None
        self.placement.apply(timestamp_ms, event)
        if moving is None or not isinstance(event, QueueMoveEnded) or -1 in (moving.from_id, event.queue_id):
            return  # otherwise only the name moved
        for bound in self.bindings_to(event.vhost, "queue", event.queue):
            if bound.queue_id == moving.from_id:
                self._bindings.remove(bound)
                self.on_bound(0, replace(bound, queue_id=event.queue_id))

    def _delete_exchange(self, vhost: str, name: str) -> list[tuple[str, str]]:
        """Delete an exchange with its bindings. Returns the exchanges that were bound to it, by (vhost, name)."""
        if self.exchanges.pop((vhost, name), None) is None:
            return []
        inbound = self.bindings_to(vhost, "exchange", name)
        for bound in (*self.bindings_from(vhost, name), *inbound):
            self._bindings.remove(bound)
        return [(vhost, bound.source) for bound in inbound]

    def _delete_if_unbound(self, sources: list[tuple[str, str]]) -> None:
        """Delete the auto-delete exchanges among these that have no bindings left."""
        for key in sources:  # grows during the loop
            exchange = self.exchanges.get(key)
            if exchange is not None and exchange.auto_delete and key not in self._bindings.by_source:
                sources.extend(self._delete_exchange(*key))

    def set_rule(self, rule: PolicyRule) -> None:
        """Set a policy or an operator policy."""
        event = rule.event
        if isinstance(event, PolicySet):
            self.policies[event.vhost, event.name] = event
            self._rules.setdefault(event.vhost, {})[event.name] = rule
        else:
            self.operator_policies[event.vhost, event.name] = event
            self._operator_rules.setdefault(event.vhost, {})[event.name] = rule

    def rules(self) -> list[PolicyRule]:
        """Return the rules of all policies, then of all operator policies, each in the order of their first setting."""
        return [
            *(self._rules[vhost][name] for vhost, name in self.policies),
            *(self._operator_rules[vhost][name] for vhost, name in self.operator_policies),
        ]

    def _rule(self, offset: int, event: PolicySet | OperatorPolicySet) -> PolicyRule | None:
        """Return the rule of a policy; None if its vhost is gone.

        Raises Nonsense."""
        require_json(f"definition of policy {event.name!r}", event.definition)
        problem = problem_in_history(event.pattern)
        if problem is not None:
            raise Nonsense(f"pattern of policy {event.name!r}: {problem}")
        try:
            rule = PolicyRule(event, offset)
        except ValueError as error:
            raise Nonsense(str(error)) from None
        return rule if event.vhost in self.vhosts else None


HANDLERS: dict[type[Any], Callable[[Topology, int, Any], None]] = {
    BrokerStarted: Topology.on_broker_started,
    MachineUpgraded: Topology.on_upgraded,
    VhostCreated: Topology.on_vhost_created,
    VhostDeleted: Topology.on_vhost_deleted,
    UserSet: Topology.on_user_set,
    UserDeleted: Topology.on_user_deleted,
    PermissionsSet: Topology.on_permissions_set,
    PermissionsCleared: Topology.on_permissions_cleared,
    TopicPermissionsSet: Topology.on_topic_permissions_set,
    TopicPermissionsCleared: Topology.on_topic_permissions_cleared,
    ParameterSet: Topology.on_parameter_set,
    ParameterCleared: Topology.on_parameter_cleared,
    GlobalParameterSet: Topology.on_global_parameter_set,
    GlobalParameterCleared: Topology.on_global_parameter_cleared,
    UserLimitsSet: Topology.on_user_limits_set,
    ExchangeDeclared: Topology.on_exchange_declared,
    ExchangeDeleted: Topology.on_exchange_deleted,
    Bound: Topology.on_bound,
    Unbound: Topology.on_unbound,
    PolicySet: Topology.on_policy_set,
    PolicyCleared: Topology.on_policy_cleared,
    OperatorPolicySet: Topology.on_operator_policy_set,
    OperatorPolicyCleared: Topology.on_operator_policy_cleared,
    NodeJoined: Topology.on_node_joined,
    NodeLost: Topology.on_node_lost,
    SubjectErased: Topology.on_keys_destroyed,
    BodiesExpired: Topology.on_keys_destroyed,
    MarkSet: Topology.on_mark_set,
    MarkDeleted: Topology.on_mark_deleted,
    **dict.fromkeys((*get_args(AccessEvent), PastRead, SessionClosed), Topology.on_nothing),
    # `apply` notes these, with their time
    **dict.fromkeys((HistoryTrimmed, HistoryForked, *get_args(PlacementEvent)), Topology.on_nothing),
    ClockStepped: Topology.on_clock_stepped,
    ClockSet: Topology.on_clock_set,
}


def _drop(mapping: dict[Any, Any], owner: str, position: int = 0) -> None:
    """Delete all entries of a vhost (keys begin with it) or of a user (second in the key)."""
    for key in [key for key in mapping if key[position] == owner]:
        del mapping[key]
