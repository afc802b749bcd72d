"""The stored form of the metadata fold: a few small pieces of JSON, the same bytes for the same state.

    head            numbers of no single item: offsets, clocks, versions
    chunk 0, 1 ..   {"of": "bindings", "items": [...]}      at most CHUNK_ITEMS items of one kind, in the fold's order

Rules
- Each item is stored as the fields of the event that made it, with the fold's additional knowledge. Bytes in arguments
  are {"bytes": hexadecimal digits}.
- Every order in the fold is preserved: of bindings, of exchanges, of past epochs.
- The stored form is complete: a fold that continues from it equals the fold from the beginning, in every answer.
- An `Image` has references, and does not change when the fold continues, so the broker's loop can make the pieces one
  by one, with other work in between.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from rewindmq.projections.store.quarantine import Quarantined
from rewindmq.projections.topology.about_history import Erasure, ExpiredDay, Floor, Fork
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.projections.topology.placement import Earlier, Move, Moving
from rewindmq.projections.topology.policies import PolicyRule
from rewindmq.schemas.clock_events import ClockStepped
from rewindmq.schemas.metadata_events import (
    Bound,
    ExchangeDeclared,
    GlobalParameterSet,
    HistoryForked,
    HistoryTrimmed,
    MarkSet,
    NodeJoined,
    OperatorPolicySet,
    ParameterSet,
    PermissionsSet,
    PolicySet,
    TopicPermissionsSet,
    UserSet,
    VhostCreated,
)
from rewindmq.schemas.values import Argument

CHUNK_ITEMS = 500

Taken = Callable[[Any], tuple[Any, ...]]  # the fields of an item
Put = Callable[[MetadataFold, list[Any]], None]  # puts an item of a chunk back
_KINDS: dict[str, tuple[Taken, Put]] = {}


@dataclass(frozen=True, slots=True)
class Image:
    """The state of a fold at one moment: numbers, and references to its items by kind.

    `offset`: the offset after the last record of the fold."""

    offset: int
    clock_ms: int
    latest_ms: int
    head: dict[str, Any]
    items: dict[str, list[Any]]

    def pieces(self) -> Iterator[bytes]:
        """Yield the head, then the chunks. Making a piece takes about a millisecond."""
        yield _json(self.head)
        for kind, items in self.items.items():
            taken = _KINDS[kind][0]
            for first in range(0, len(items), CHUNK_ITEMS):
                yield _json({"of": kind, "items": list(map(taken, items[first : first + CHUNK_ITEMS]))})


def image_of(fold: MetadataFold) -> Image:
    """Return the image of a fold's current state, in a millisecond for 100,000 items."""
    topology = fold.topology
    stepped = topology.clock_stepped
    head = {
        "next_offset": fold.next_offset,
        "topology_next_offset": topology.next_offset,
        "clock_ms": fold.clock_ms,
        "latest_ms": fold.latest_ms,
        "quarantined": fold.quarantine.count,
        "had_permissions": topology.had_permissions,
        "machine_version": topology.machine_version,
        "ahead_ms": topology.ahead_ms,
        "clock_stepped": None if stepped is None else _fields_of(ClockStepped)(stepped),
        "placement": [topology.placement.count, topology.placement.wanted, topology.placement.held],
    }
    items: dict[str, list[Any]] = {
        "vhosts": list(topology.vhosts.values()),
        "deleted_vhosts": list(topology.deleted_vhosts),
        "users": list(topology.users.values()),
        "user_limits": list(topology.user_limits.items()),
        "permissions": list(topology.permissions.values()),
        "topic_permissions": list(topology.topic_permissions.values()),
        "parameters": list(topology.parameters.values()),
        "global_parameters": list(topology.global_parameters.values()),
        "exchanges": list(topology.exchanges.values()),
        "bindings": topology.bindings_in_order(),
        "policies": topology.rules(),
        "marks": [(*topology.marked[name], mark) for name, mark in topology.marks.items()],
        "erasures": list(topology.erasures),
        "erased_keys": list(topology.erased_keys.items()),
        "floors": [(each.at, each.time_ms, each.user, each.event) for each in topology.history.floors.values()],
        "forks": [(each.at, each.time_ms, each.user, each.event) for each in topology.history.forks],
        "expired_days": [(day, at.offset, at.time_ms) for day, at in topology.history.expired_days.items()],
        "staying": list(topology.placement.staying.items()),
        "gathered": list(topology.placement.gathered.items()),
        "moving": list(topology.placement.moving.items()),
        "moves": [(name, move) for name, moves in topology.placement.moves.items() for move in moves],
        "earlier_placements": [(each.until_ms, each.count) for each in topology.placement.earlier],
        "stayed": [
            (number, name, at)
            for number, each in enumerate(topology.placement.earlier)
            for name, at in each.staying.items()
        ],
        "nodes": list(topology.nodes.items()),
        "ended": list(topology.ended.items()),
        "quarantined": fold.quarantine.newest(),
    }
    return Image(fold.next_offset, fold.clock_ms, fold.latest_ms, head, items)


def restored(pieces: Iterable[bytes]) -> MetadataFold:
    """Return the fold from the pieces of its stored form.

    Pieces from elsewhere may raise any exception."""
    fold, remaining = MetadataFold(), iter(pieces)
    topology, head = fold.topology, json.loads(next(remaining))
    topology.vhosts, topology.exchanges = {}, {}  # the default content of a new vhost is also stored
    for piece in remaining:
        chunk = json.loads(piece)
        put = _KINDS[chunk["of"]][1]
        for item in chunk["items"]:
            put(fold, item)
    stepped = head["clock_stepped"]
    fold.next_offset, topology.next_offset = head["next_offset"], head["topology_next_offset"]
    fold.clock_ms, fold.latest_ms = head["clock_ms"], head["latest_ms"]
    fold.quarantine.count = head["quarantined"]
    topology.had_permissions, topology.machine_version = head["had_permissions"], head["machine_version"]
    topology.ahead_ms = head["ahead_ms"]
    topology.clock_stepped = None if stepped is None else ClockStepped(*stepped)
    placement = topology.placement
    placement.count, placement.wanted, placement.held = head["placement"]
    return fold


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 (hex) of a stored form, the digest of the whole state."""
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(len(piece).to_bytes(8, "big"))
        sha.update(piece)
    return sha.hexdigest()


# -- items -------------------------------------------------------------------------------------------------------------


def _fields_of(cls: type) -> Taken:
    return attrgetter(*(field.name for field in fields(cls)))


def _kind(name: str, taken: Taken) -> Callable[[Put], Put]:
    def known(put: Put) -> Put:
        _KINDS[name] = taken, put
        return put

    return known


def _made(cls: Callable[..., Any], stored: list[Any]) -> Any:
    """Return the event with these fields. Lists are tuples in events."""
    return cls(*(tuple(_tupled(item) for item in value) if type(value) is list else value for value in stored))


def _tupled(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _arguments(stored: list[list[Any]]) -> tuple[Argument, ...]:
    return tuple(
        Argument(name, type_, bytes.fromhex(value["bytes"]) if type(value) is dict else value)
        for name, type_, value in stored
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=True).encode()


def _plain(value: Any) -> Any:
    """Return the JSON form of a value that JSON cannot hold."""
    if type(value) is bytes:
        return {"bytes": value.hex()}
    assert type(value) is Argument, f"an event of the topology holds no {type(value).__name__}"
    return value.name, value.type, value.value


@_kind("vhosts", _fields_of(VhostCreated))
def _put_vhost(fold: MetadataFold, item: list[Any]) -> None:
    event = _made(VhostCreated, item)
    fold.topology.vhosts[event.vhost] = event


@_kind("deleted_vhosts", lambda vhost: (vhost,))
def _put_deleted_vhost(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.deleted_vhosts[item[0]] = None


@_kind("users", _fields_of(UserSet))
def _put_user(fold: MetadataFold, item: list[Any]) -> None:
    event = _made(UserSet, item)
    fold.topology.users[event.name] = event


@_kind("user_limits", tuple)
def _put_user_limits(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.user_limits[item[0]] = item[1]


@_kind("permissions", _fields_of(PermissionsSet))
def _put_permissions(fold: MetadataFold, item: list[Any]) -> None:
    event = PermissionsSet(*item)
    fold.topology.permissions[event.vhost, event.user] = event


@_kind("topic_permissions", _fields_of(TopicPermissionsSet))
def _put_topic_permissions(fold: MetadataFold, item: list[Any]) -> None:
    event = TopicPermissionsSet(*item)
    fold.topology.topic_permissions[event.vhost, event.user, event.exchange] = event


@_kind("parameters", _fields_of(ParameterSet))
def _put_parameter(fold: MetadataFold, item: list[Any]) -> None:
    event = ParameterSet(*item)
    fold.topology.parameters[event.vhost, event.component, event.name] = event


@_kind("global_parameters", _fields_of(GlobalParameterSet))
def _put_global_parameter(fold: MetadataFold, item: list[Any]) -> None:
    event = GlobalParameterSet(*item)
    fold.topology.global_parameters[event.name] = event


@_kind("exchanges", _fields_of(ExchangeDeclared))
def _put_exchange(fold: MetadataFold, item: list[Any]) -> None:
    vhost, name, type_, durable, auto_delete, internal, arguments = item
    event = ExchangeDeclared(
        vhost,
        name,
        type=type_,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=_arguments(arguments),
    )
    fold.topology.exchanges[event.vhost, event.exchange] = event


@_kind("bindings", _fields_of(Bound))
def _put_binding(fold: MetadataFold, item: list[Any]) -> None:
    vhost, source, destination_type, destination, key, arguments, queue_id = item
    made = _arguments(arguments) if arguments else ()
    fold.topology.on_bound(0, Bound(vhost, source, destination_type, destination, key, made, queue_id))


def _rule_taken(rule: PolicyRule) -> tuple[Any, ...]:
    event = rule.event
    return (type(event).__name__, rule.policy.version, *_fields_of(type(event))(event))


@_kind("policies", _rule_taken)
def _put_policy(fold: MetadataFold, item: list[Any]) -> None:
    name, version, *values = item
    event = PolicySet(*values) if name == "PolicySet" else OperatorPolicySet(*values)
    fold.topology.set_rule(PolicyRule(event, version))


@_kind("marks", lambda item: (*item[:2], *_fields_of(MarkSet)(item[2])))
def _put_mark(fold: MetadataFold, item: list[Any]) -> None:
    time_ms, user, *values = item
    event = _made(MarkSet, values)
    fold.topology.marks[event.name] = event
    fold.topology.marked[event.name] = time_ms, user


@_kind("erasures", _fields_of(Erasure))
def _put_erasure(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.erasures.append(_made(Erasure, item))


@_kind("erased_keys", tuple)
def _put_erased_key(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.erased_keys[item[0]] = item[1]


@_kind("floors", lambda item: (*item[:3], *_fields_of(HistoryTrimmed)(item[3])))
def _put_floor(fold: MetadataFold, item: list[Any]) -> None:
    at, time_ms, user, partition, offset, until_ms, chain, *others = item
    event = _made(HistoryTrimmed, [partition, offset, until_ms, bytes.fromhex(chain["bytes"]), *others])
    fold.topology.history.floors[event.partition] = Floor(at, time_ms, user, event)


@_kind("forks", lambda item: (*item[:3], *_fields_of(HistoryForked)(item[3])))
def _put_fork(fold: MetadataFold, item: list[Any]) -> None:
    at, time_ms, user, *values = item
    fold.topology.history.forks.append(Fork(at, time_ms, user, _made(HistoryForked, values)))


@_kind("expired_days", tuple)
def _put_expired_day(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.history.expired_days[item[0]] = ExpiredDay(*item[1:])


@_kind("staying", lambda item: (*item[0], item[1]))
def _put_staying(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.placement.staying[item[0], item[1]] = item[2]


@_kind("gathered", lambda item: (*item[0], item[1]))
def _put_gathered(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.placement.gathered[item[0], item[1]] = item[2]


@_kind("moving", lambda item: (*item[0], *_fields_of(Moving)(item[1])))
def _put_moving(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.placement.moving[item[0], item[1]] = Moving(*item[2:])


@_kind("moves", lambda item: (*item[0], *_fields_of(Move)(item[1])))
def _put_move(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.placement.moves.setdefault((item[0], item[1]), []).append(Move(*item[2:]))


@_kind("earlier_placements", tuple)
def _put_earlier(fold: MetadataFold, item: list[Any]) -> None:
    until_ms, count = item
    fold.topology.placement.earlier.append(Earlier(until_ms, count, {}))


@_kind("stayed", lambda item: (item[0], *item[1], item[2]))
def _put_stayed(fold: MetadataFold, item: list[Any]) -> None:
    number, vhost, queue, at = item
    fold.topology.placement.earlier[number].staying[vhost, queue] = at


@_kind("nodes", lambda item: (item[0], *_fields_of(NodeJoined)(item[1])))
def _put_node(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.nodes[item[0]] = NodeJoined(*item[1:])


@_kind("ended", tuple)
def _put_ended(fold: MetadataFold, item: list[Any]) -> None:
    fold.topology.ended[item[0]] = item[1]


@_kind("quarantined", _fields_of(Quarantined))
def _put_quarantined(fold: MetadataFold, item: list[Any]) -> None:
    fold.quarantine.add(*item)
