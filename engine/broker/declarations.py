"""Checks of declarations: arguments of queues and consumers, and equality with a queue or exchange that exists.

Rules of this file
- Codes and texts are RabbitMQ 3.13's, word for word (rabbit_misc.erl `equivalence_fail/4`, rabbit_queue_type_util.erl).
  Values are printed as Erlang terms, as clients of RabbitMQ see them. The table of keys says which queue takes which
  argument, and with which values (projections/machine/rules/policy_keys.py).
- An `x-` key that no queue type knows is accepted, a key of another type is refused (S-072).
- An argument that the history's machine version does not know is refused, never ignored (upgrades/since_version.py).
- Pure functions: raise an `AmqpError` or return.
"""

from rewindmq.engine.errors import (
    AccessRefused,
    AmqpError,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceLocked,
    resource,
)
from rewindmq.engine.upgrades.since_version import require
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.legal_values import FLAG, INTEGER, NUMBER, Choice
from rewindmq.projections.machine.rules.policy_keys import BY_ARGUMENT, DECLARABLE_TYPES, KEYS, arguments_of
from rewindmq.projections.machine.rules.profile import PROFILES, RABBITMQ_3_13
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.queue_arguments import argument_of, value_problem
from rewindmq.schemas.metadata_events import ExchangeDeclared
from rewindmq.schemas.values import Argument

TYPE_MODULES = {"classic": "rabbit_classic_queue", "quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}

SEMANTICS_ARGUMENT = "x-semantics"  # RewindMQ's own: the queue's profile, if it is not the node's


def strip_cr_lf(name: str) -> str:
    """The name of a queue or an exchange without line breaks, as RabbitMQ reads it."""
    return name.replace("\n", "").replace("\r", "")


# -- arguments of a queue ---------------------------------------------------------------------------------------------


def queue_type(vhost: str, name: str, arguments: tuple[Argument, ...]) -> str:
    """The queue type in `x-queue-type`; classic without that argument. PreconditionFailed."""
    for argument in arguments:
        if argument.name == "x-queue-type":
            if argument.type != "longstr":
                raise _invalid(vhost, name, argument, f"{{unacceptable_type,{argument.type}}}")
            if argument.value not in DECLARABLE_TYPES:
                raise _invalid(vhost, name, argument, f"\"unsupported queue type '{_plain(argument.value)}'\"")
            return str(argument.value)
    return "classic"


def with_default_type(
    default: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: tuple[Argument, ...]
) -> tuple[Argument, ...]:
    """The arguments with an `x-queue-type`, in a vhost that has a default queue type ("": none): the default, or
    classic where a queue of that type cannot have these properties (rabbit_amqqueue.erl `augment_declare_args/5`)."""
    if default == "" or any(argument.name == "x-queue-type" for argument in arguments):
        return arguments
    fits = durable and not exclusive and not auto_delete
    return (*arguments, Argument("x-queue-type", "longstr", default if fits else "classic"))


def semantics_of(vhost: str, name: str, arguments: tuple[Argument, ...], default: str) -> str:
    """The name of the queue's profile: in `x-semantics`, else the default. PreconditionFailed."""
    argument = argument_of(arguments, SEMANTICS_ARGUMENT)
    if argument is None:
        return default
    problem = Choice("\"unsupported semantics 'VALUE'\"", *PROFILES).problem(argument)
    if problem is not None:
        raise _invalid(vhost, name, argument, problem)
    return str(argument.value)


def check_queue_arguments(
    vhost: str, name: str, kind: str, arguments: tuple[Argument, ...], semantics: str = RABBITMQ_3_13.name
) -> None:
    """PreconditionFailed: an argument has a wrong type or value, or belongs to another queue type."""
    given = {argument.name: argument for argument in arguments}
    for key in KEYS:
        if key.argument in given and key.takes_argument(kind, semantics):
            problem = value_problem(given[key.argument], given, semantics)
            if problem is not None:
                raise _invalid(vhost, name, given[key.argument], problem)
    for argument in arguments:
        known = BY_ARGUMENT.get(argument.name)
        if known is not None and known.has_argument(semantics) and kind not in known.queues:
            raise PreconditionFailed(
                f"invalid arg '{argument.name}' for {resource('queue', name, vhost)} of queue type {TYPE_MODULES[kind]}"
            )


def check_machine_version(kind: str, arguments: tuple[Argument, ...], version: int) -> None:
    """PreconditionFailed: the history follows a machine version that does not know the queue type, or an argument."""
    require(f"queue type '{kind}'", version)
    for argument in arguments:
        if argument.value is not False:
            require(argument.name, version)


def check_exclusive_use(queue: Queue, exclusive: bool) -> None:
    """AccessRefused: an exclusive consumer has to be the only one, and a queue with a single active consumer takes none
    (S-110)."""
    alone = exclusive or queue.exclusive_consumer() is not None
    if alone and (queue.consumer_count() > 0 or queue.single_active):
        raise AccessRefused(f"{resource('queue', queue.name, queue.vhost)} in exclusive use")


def check_fetch(queue: Queue) -> None:
    """Refuse basic.get where RabbitMQ does not support it (S-110)."""
    if queue.stream:
        where = resource("queue", queue.name, queue.vhost)
        raise NotImplementedByBroker(f"basic.get not supported by stream queues {where}")
    if queue.type == "quorum" and queue.single_active:
        raise ResourceLocked(
            f"cannot obtain access to locked {resource('queue', queue.name, queue.vhost)}. basic.get operations are not"
            " supported by quorum queues with single active consumer"
        )


def check_queue_properties(vhost: str, name: str, kind: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """PreconditionFailed: a quorum queue or a stream cannot have these properties (S-079, S-087)."""
    if kind == "classic":
        return
    for wrong, text in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise PreconditionFailed(f"invalid property '{text}' for {resource('queue', name, vhost)}")


def check_consumer_arguments(queue: Queue, arguments: tuple[Argument, ...]) -> None:
    """PreconditionFailed: an argument of basic.consume has a wrong type or value."""
    for argument in arguments:
        if argument.name == "x-priority":
            problem = INTEGER.problem(argument)
        elif argument.name == "x-cancel-on-ha-failover" and queue.type == "classic":
            problem = FLAG.problem(argument)
        elif argument.name == "x-consumer-timeout" and queue.quorum and queue.profile.overdue_returns:
            problem = NUMBER.problem(argument)
        else:
            problem = None
        if problem is not None:
            raise _invalid(queue.vhost, queue.name, argument, problem)


def exchange_named_by(kind: str, name: str, vhost: str, arguments: tuple[Argument, ...], key: str) -> str | None:
    """The dead-letter or alternate exchange in the argument `key`, or None. PreconditionFailed: it is no text."""
    argument = argument_of(arguments, key)
    if argument is None:
        return None
    if argument.type != "longstr":
        raise PreconditionFailed(f"invalid type '{argument.type}' for arg '{key}' in {resource(kind, name, vhost)}")
    return str(argument.value)


def _invalid(vhost: str, name: str, argument: Argument, problem: str) -> AmqpError:
    return PreconditionFailed(f"invalid arg '{argument.name}' for {resource('queue', name, vhost)}: {problem}")


# -- equality with a queue or exchange that exists (S-067) -------------------------------------------------------------


def check_queue_equivalence(queue: Queue, durable: bool, auto_delete: bool, arguments: tuple[Argument, ...]) -> None:
    """PreconditionFailed: the queue exists with other properties or arguments."""
    where = resource("queue", queue.name, queue.vhost)
    _same_field(where, "durable", queue.durable, durable)
    _same_field(where, "auto_delete", queue.auto_delete, auto_delete)
    for key in (*arguments_of(queue.type, queue.semantics), SEMANTICS_ARGUMENT):
        _same_argument(where, key, argument_of(queue.arguments, key), argument_of(arguments, key))


def check_exchange_equivalence(
    exchange: ExchangeDeclared,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: tuple[Argument, ...],
) -> None:
    """PreconditionFailed: the exchange exists with other properties, or another alternate exchange."""
    where = resource("exchange", exchange.exchange, exchange.vhost)
    _same_field(where, "type", exchange.type, type)
    _same_field(where, "durable", exchange.durable, durable)
    _same_field(where, "auto_delete", exchange.auto_delete, auto_delete)
    _same_field(where, "internal", exchange.internal, internal)
    key = "alternate-exchange"
    _same_argument(where, key, argument_of(exchange.arguments, key), argument_of(arguments, key))


def _same_field(where: str, key: str, current: bool | str, received: bool | str) -> None:
    if current != received:
        raise _inequivalent(where, key, f"'{_plain(received)}'", f"'{_plain(current)}'")


def _same_argument(where: str, key: str, current: Argument | None, received: Argument | None) -> None:
    if current is not None and received is not None:
        same = type(current.value) is type(received.value) and current.value == received.value
        if not same:
            raise _inequivalent(where, key, f"'{_plain(received.value)}'", f"'{_plain(current.value)}'")
    elif current is not None or received is not None:
        present = current if current is not None else received
        assert present is not None
        if not (key == "x-queue-type" and present.value == "classic"):
            raise _inequivalent(where, key, _with_type(received), _with_type(current))


def _with_type(argument: Argument | None) -> str:
    return "none" if argument is None else f"the value '{_plain(argument.value)}' of type '{argument.type}'"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else erlang_term(value)


def _inequivalent(where: str, key: str, received: str, current: str) -> AmqpError:
    return PreconditionFailed(f"inequivalent arg '{key}' for {where}: received {received} but current is {current}")


def locked(queue: Queue) -> AmqpError:
    """The refusal of another connection's exclusive queue."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked {resource('queue', queue.name, queue.vhost)}. It could be originally"
        " declared on another connection or the exclusive property value does not match that of the original"
        " declaration."
    )
