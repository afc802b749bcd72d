"""The arguments of an exchange of type x-message-deduplication (RabbitMQ's plugin rabbitmq-message-deduplication).

    x-cache-size           how many messages are remembered: 1 to 1,000,000
    x-cache-ttl            for how many milliseconds; without it, until others take their place
    x-cache-persistence    memory or disk. Here it decides nothing: what is remembered is in the log

Numbers may be texts of digits, as in the plugin. A policy's keys of the same names go before the arguments. The rule
itself is the queues' (projections/machine/rules/deduplication.py), and the route tells them of it.
"""

import json
from typing import Final

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.data.id_windows import LONGEST_TTL_MS, MOST_REMEMBERED
from rewindmq.projections.machine.rules.deduplication import TTL_HEADER
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.metadata_events import ExchangeDeclared
from rewindmq.schemas.values import Argument, Deduplication, Policy

DEDUPLICATING_EXCHANGE: Final = "x-message-deduplication"  # the exchange's type
SIZE: Final = "x-cache-size"
TTL: Final = TTL_HEADER  # a message may also have a header of this name
PERSISTENCE: Final = "x-cache-persistence"


def check_arguments(exchange: ExchangeDeclared) -> None:
    """Raise PreconditionFailed if an argument is missing or wrong. The texts are the plugin's."""
    size = _number(argument_of(exchange.arguments, SIZE))
    if size is None or size < 1:
        raise PreconditionFailed(f"Missing or invalid argument, '{SIZE}' must be an integer greater than 0")
    if size > MOST_REMEMBERED:
        raise PreconditionFailed(f"Invalid argument, '{SIZE}' must be at most {MOST_REMEMBERED}")
    given = argument_of(exchange.arguments, TTL)
    ttl_ms = _number(given)
    if given is not None and (ttl_ms is None or ttl_ms < 1):
        raise PreconditionFailed(f"Invalid argument, '{TTL}' must be an integer greater than 0")
    if ttl_ms is not None and ttl_ms > LONGEST_TTL_MS:
        raise PreconditionFailed(f"Invalid argument, '{TTL}' must be at most {LONGEST_TTL_MS}")
    persistence = argument_of(exchange.arguments, PERSISTENCE)
    if persistence is not None and persistence.value not in ("disk", "memory"):
        raise PreconditionFailed(f"Invalid argument, '{PERSISTENCE}' must be either 'disk' or 'memory'")


def deduplication_of(exchange: ExchangeDeclared, policy: Policy | None) -> Deduplication | None:
    """Return the deduplication that the exchange asks of its queues; None for another type, or without a size."""
    if exchange.type != DEDUPLICATING_EXCHANGE:
        return None
    ruled = {} if policy is None else json.loads(policy.definition)
    size = ruled.get(SIZE, _number(argument_of(exchange.arguments, SIZE)))
    ttl_ms = ruled.get(TTL, _number(argument_of(exchange.arguments, TTL)))
    return None if size is None else Deduplication(exchange.exchange, size, ttl_ms)


def _number(argument: Argument | None) -> int | None:
    """Return the number in an argument: an integer, or a text of digits."""
    if argument is None or isinstance(argument.value, bool):
        return None
    value = argument.value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) else None
