"""The arguments of a consumer that reads: where it begins, and which messages it gets; and what a stream can't do.

    x-stream-offset              first, last, next, a number, a timestamp, or an age like "1h" (a stream: next)
    x-rewind-to                  a timestamp, an ISO 8601 time, mark:NAME or an offset of the log: the queue as it was
    x-stream-filter              one word or several: only messages whose header x-stream-filter-value is one of them
    x-stream-match-unfiltered    true: messages without that header, too

Codes and texts are those of RabbitMQ 3.13's streams (rabbit_stream_queue.erl `consume/3`, `parse_offset_arg/1`,
`filter_spec/1`; rabbit_amqqueue.erl `consume_args/0`). Pure functions: they raise an `AmqpError` or return.
"""

import json
from dataclasses import dataclass

from rewindmq.engine.broker.declarations import TYPE_MODULES, check_consumer_arguments
from rewindmq.engine.errors import NotImplementedByBroker, PreconditionFailed, resource
from rewindmq.engine.rewind.partition_visits import moment_in
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.legal_values import INTEGER_TYPES, age_ms
from rewindmq.projections.machine.rules.policy_keys import MAX_SEGMENT_BYTES
from rewindmq.projections.rewind import At, RewindError
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.amqp.properties import headers_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Argument

FIRST, LAST, NEXT, NUMBER, TIME = "first", "last", "next", "number", "time"
OTHERS_ARGUMENTS = ("x-priority", "x-cancel-on-ha-failover")  # of other queue types' consumers (`capabilities/0`)
FILTER_VALUE = "x-stream-filter-value"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a consumer. `value`: a message's number, or milliseconds since the epoch."""

    kind: str
    value: int = 0


class Filter:
    """The messages that a consumer wants. `unfiltered`: also those without a filter value."""

    def __init__(self, values: frozenset[str], unfiltered: bool) -> None:
        self.values = values
        self.unfiltered = unfiltered

    def passes(self, message: Published) -> bool:
        """Return True if the consumer wants this message."""
        for name, kind, value in headers_of(message.properties):
            if name == FILTER_VALUE and kind == "longstr":
                return value in self.values
        return self.unfiltered


def is_past_asked(arguments: tuple[Argument, ...]) -> bool:
    """Return True if a consumer with these arguments only reads, and takes nothing."""
    return any(argument.name in ("x-stream-offset", "x-rewind-to") for argument in arguments)


def check_reader(
    queue: Queue, arguments: tuple[Argument, ...], no_ack: bool, prefetch: int, global_prefetch: int
) -> None:
    """Refuse what a reader can't do. Its prefetch paces it: acks let it have more, and do nothing else."""
    where = resource("queue", queue.name, queue.vhost)
    if not queue.stream:
        check_consumer_arguments(queue, arguments)
    for argument in arguments:
        if queue.stream and argument.name in OTHERS_ARGUMENTS:
            module = TYPE_MODULES[queue.type]
            raise PreconditionFailed(f"invalid arg '{argument.name}' for {where} of queue type {module}")
    if prefetch == 0:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{where}'")
    if no_ack:
        raise NotImplementedByBroker(f"automatic acknowledgement not supported by stream queues {where}")
    if global_prefetch > 0:
        raise NotImplementedByBroker(f"{where} does not support global qos")


def start_of(queue: Queue, arguments: tuple[Argument, ...], now_ms: int) -> Start:
    """The start that x-stream-offset names. PreconditionFailed."""
    argument = argument_of(arguments, "x-stream-offset")
    if argument is None:
        return Start(NEXT)
    value = argument.value
    if argument.type == "timestamp" and isinstance(value, int):
        return Start(TIME, value * 1000)
    if argument.type in INTEGER_TYPES and isinstance(value, int):
        return Start(NUMBER, value)
    if isinstance(value, str):
        if value in (FIRST, LAST, NEXT):
            return Start(value)
        age = age_ms(value) if argument.type == "longstr" else None
        if age is not None:
            return Start(TIME, now_ms - age)
    problem = f"{{invalid_stream_offset_arg,{{{argument.type},{erlang_term(value)}}}}}"
    raise _invalid(queue, argument, problem)


def moment_of(queue: Queue, arguments: tuple[Argument, ...], topology: Topology, partitions: int) -> At | None:
    """The moment that x-rewind-to names, in the queue's partition, out of so many; None: there is no such argument.
    PreconditionFailed."""
    argument = argument_of(arguments, "x-rewind-to")
    if argument is None:
        return None
    if argument_of(arguments, "x-stream-offset") is not None:
        raise _invalid(queue, argument, "there is an x-stream-offset, too")
    value = argument.value
    if argument.type == "timestamp" and isinstance(value, int):
        return At(time_ms=value * 1000)
    if argument.type in INTEGER_TYPES and isinstance(value, int) and value >= 0:
        return At(offset=value)
    if argument.type == "longstr" and isinstance(value, str):
        try:
            return moment_in(value, queue.vhost, queue.name, topology, partitions)
        except RewindError as error:
            raise _invalid(queue, argument, str(error)) from None
    problem = f"{{invalid_rewind_to_arg,{{{argument.type},{erlang_term(value)}}}}}"
    raise _invalid(queue, argument, problem)


def _invalid(queue: Queue, argument: Argument, problem: str) -> PreconditionFailed:
    where = resource("queue", queue.name, queue.vhost)
    return PreconditionFailed(f"invalid arg '{argument.name}' for {where}: {problem}")


def filter_of(arguments: tuple[Argument, ...]) -> Filter | None:
    """The filter that x-stream-filter names, or None."""
    argument = argument_of(arguments, "x-stream-filter")
    if argument is None:
        return None
    words: list[object] = []
    if argument.type == "array" and isinstance(argument.value, str):
        words = json.loads(argument.value)
    elif argument.type == "longstr":
        words = [argument.value]
    else:
        return None
    unfiltered = argument_of(arguments, "x-stream-match-unfiltered")
    match = unfiltered is not None and unfiltered.type == "bool" and unfiltered.value is True
    return Filter(frozenset(word for word in words if isinstance(word, str)), match)


def check_stream_sizes(arguments: tuple[Argument, ...]) -> None:
    """Refuse sizes of segments and filters that RabbitMQ refuses, in its words. They decide nothing here."""
    segment = argument_of(arguments, "x-stream-max-segment-size-bytes")
    if segment is not None and isinstance(segment.value, int) and segment.value > MAX_SEGMENT_BYTES:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    size = argument_of(arguments, "x-stream-filter-size-bytes")
    if size is not None and not (isinstance(size.value, int) and 16 <= size.value <= 255):
        raise PreconditionFailed("Invalid value for  x-stream-filter-size-bytes")
