"""Limits of vhosts (max-connections, max-queues) and users (max-connections, max-channels): checked when they are set,
and when a connection, a channel or a queue begins.

Rules of this file
- A limit that is negative or missing is no limit; 0 lets nothing in. Texts are RabbitMQ 3.13's (rabbit_vhost_limit.erl,
  rabbit_auth_backend_internal.erl, rabbit_reader.erl, rabbit_queue_type.erl).
- A new limit closes nothing that is open already.
- Each node counts its own connections and channels: of nodes that share a log, each has the whole limit.
"""

import json
from collections.abc import Iterable, Mapping

from rewindmq.engine.errors import NotAllowed, PreconditionFailed
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.routing.homes import Homes
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.json_texts import Limits
from rewindmq.projections.topology.topology import Topology

VHOST_LIMITS = ("max-connections", "max-queues")
USER_LIMITS = ("max-connections", "max-channels")


def problems(name: str, known: tuple[str, ...], limits: object) -> list[str]:
    """The problems of an object of limits, in RabbitMQ's words (rabbit_parameter_validation.erl `proplist/3`)."""
    if not isinstance(limits, Mapping):
        return [f"{name} not a list {erlang_term(limits)}"]
    found = []
    unknown = [key for key in limits if key not in known]
    if unknown:
        pairs = ",".join(f"{{{erlang_term(key)},{erlang_term(limits[key])}}}" for key in unknown)
        found.append(f"Unrecognised terms [{pairs}] in {name}")
    for key in reversed(known):
        if key in limits and type(limits[key]) is not int:
            found.append(f"{key} should be a number, actually was {erlang_term(limits[key])}")
    return found


def canonical(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def checked_user_limits(limits: object) -> str:
    """The limits of a user as canonical JSON. PreconditionFailed, with the first problem."""
    wrong = problems("user-limits", USER_LIMITS, limits)
    if wrong:
        raise PreconditionFailed(wrong[0])
    return canonical(limits)


def check_connection(topology: Topology, sessions: Iterable[Session], user: str, vhost: str) -> None:
    """NotAllowed: the vhost or the user may not have one more connection."""
    vhost_limit = _limit(topology.vhost_limits(vhost), "max-connections")
    user_limit = _limit(topology.user_limits.get(user), "max-connections")
    if vhost_limit is None and user_limit is None:
        return
    open_ones = [session for session in sessions if session.close is not None]  # without those of HTTP requests
    if vhost_limit is not None and sum(session.vhost == vhost for session in open_ones) >= vhost_limit:
        raise NotAllowed(
            f"access to vhost '{vhost}' refused for user '{user}': connection limit ({vhost_limit}) is reached"
        )
    if user_limit is not None and sum(session.user == user for session in open_ones) >= user_limit:
        raise NotAllowed(f"connection refused for user '{user}': user connection limit ({user_limit}) is reached")


def check_channel(topology: Topology, sessions: Iterable[Session], user: str) -> None:
    """NotAllowed: the user may not have one more channel. (Where this text has the user, RabbitMQ's has its node.)"""
    limit = _limit(topology.user_limits.get(user), "max-channels")
    if limit is not None and sum(len(session.channels) for session in sessions if session.user == user) >= limit:
        raise NotAllowed(
            f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
        )


def has_queue_limit(topology: Topology, vhost: str) -> bool:
    """Return True if the vhost has a limit on its number of queues."""
    return _limit(topology.vhost_limits(vhost), "max-queues") is not None


def check_queue(
    topology: Topology, homes: Homes, partitions: Iterable[PartitionReading], vhost: str, name: str
) -> None:
    """PreconditionFailed: the vhost may not have one more queue."""
    limit = _limit(topology.vhost_limits(vhost), "max-queues")
    if limit is not None and count_queues(homes, partitions, vhost) >= limit:
        raise PreconditionFailed(f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached")


def count_queues(homes: Homes, partitions: Iterable[PartitionReading], vhost: str) -> int:
    """The number of a vhost's queues that clients can see."""
    twice = homes.has_moves
    return sum(
        1
        for partition in partitions
        for home, name in partition.machine.by_name
        if home == vhost and not is_hidden(name) and not (twice and not homes.is_listed(partition, vhost, name))
    )


def _limit(limits: Limits | None, name: str) -> int | None:
    limit = None if limits is None else limits.get(name)
    return None if limit is None or limit < 0 else limit
