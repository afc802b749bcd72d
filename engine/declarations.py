"""What a declaration must be: arguments of queues, consumers and bindings, and equality with what is declared already.

Rules of this file
- Codes and texts are RabbitMQ 3.13's, word for word (rabbit_amqqueue.erl `declare_args/0`, rabbit_misc.erl
  `equivalence_fail/4`, rabbit_queue_type_util.erl); values print as Erlang terms, as clients of RabbitMQ see them.
- An `x-` key that no queue type knows is accepted, a key of another type is refused (S-072).
- What this version cannot do yet is refused, never ignored: streams (540), priorities, single active consumers (406).
- Pure functions: raise an `AmqpError` or return.
"""

from collections.abc import Callable

from engine.errors import AmqpError, NotImplementedByBroker, PreconditionFailed
from projections.machine.queue import Queue
from schemas.events import Argument, ExchangeDeclared

SEMANTICS = "rabbitmq-3.13"
MAX_EXPIRY_MS = 315_360_000_000  # ten years, rabbit_misc.erl `check_expiry/1` (S-036)
INTEGER_TYPES = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")
EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic")
TYPE_MODULES = {"classic": "rabbit_classic_queue", "quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}

# Declaration arguments by queue type, in the order in which equality is checked (`capabilities/0` of each type).
QUEUE_ARGUMENTS = {
    "classic": (
        "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
        "x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode", "x-queue-version",
        "x-single-active-consumer", "x-queue-type", "x-queue-master-locator",
    ),
    "quorum": (
        "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires", "x-max-length",
        "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow",
        "x-single-active-consumer", "x-queue-type", "x-quorum-initial-group-size", "x-delivery-limit",
        "x-message-ttl", "x-queue-leader-locator",
    ),
    "stream": (
        "x-max-length-bytes", "x-queue-type", "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}  # fmt: skip
ALL_ARGUMENTS = frozenset(name for names in QUEUE_ARGUMENTS.values() for name in names)

Problem = str | None  # the Erlang term that says what is wrong with an argument
Arguments = dict[str, Argument]


def resource(kind: str, name: str, vhost: str) -> str:
    """A queue or exchange as RabbitMQ's texts name it."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def erlang_term(value: object) -> str:
    """A value as Erlang's `~tp` prints it: strings as binaries, tables as maps."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'<<"{value}">>'
    if isinstance(value, list | tuple):
        return "[" + ",".join(erlang_term(item) for item in value) + "]"
    if isinstance(value, dict):
        return "#{" + ",".join(f"{erlang_term(key)} => {erlang_term(item)}" for key, item in value.items()) + "}"
    return str(value)


# -- arguments of a queue ---------------------------------------------------------------------------------------------


def queue_type(vhost: str, name: str, arguments: tuple[Argument, ...]) -> str:
    """The type that `x-queue-type` asks for; classic without one."""
    for argument in arguments:
        if argument.name == "x-queue-type":
            if argument.type != "longstr":
                raise _invalid(vhost, name, argument, f"{{unacceptable_type,{argument.type}}}")
            if argument.value not in QUEUE_ARGUMENTS:
                raise _invalid(vhost, name, argument, f"\"unsupported queue type '{_plain(argument.value)}'\"")
            return str(argument.value)
    return "classic"


def check_queue_arguments(vhost: str, name: str, kind: str, arguments: tuple[Argument, ...]) -> None:
    """Each argument's type and value, then keys that belong to another queue type."""
    given = {argument.name: argument for argument in arguments}
    for key, check in _CHECKS:
        if key in given and key in QUEUE_ARGUMENTS[kind]:
            problem = check(given[key], given)
            if problem is not None:
                raise _invalid(vhost, name, given[key], problem)
    for argument in arguments:
        if argument.name in ALL_ARGUMENTS and argument.name not in QUEUE_ARGUMENTS[kind]:
            raise PreconditionFailed(
                f"invalid arg '{argument.name}' for {resource('queue', name, vhost)} of queue type {TYPE_MODULES[kind]}"
            )
    if kind == "stream":
        raise NotImplementedByBroker(f"{resource('queue', name, vhost)}: queue type 'stream' is not supported yet")
    for key in ("x-max-priority", "x-single-active-consumer"):
        if key in given and given[key].value is not False:
            raise PreconditionFailed(f"invalid arg '{key}' for {resource('queue', name, vhost)}: not supported yet")


def check_queue_properties(
    vhost: str, name: str, kind: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """What a quorum queue cannot be (S-079, S-087)."""
    if kind == "classic":
        return
    for wrong, text in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise PreconditionFailed(f"invalid property '{text}' for {resource('queue', name, vhost)}")


def check_consumer_arguments(queue: Queue, arguments: tuple[Argument, ...]) -> None:
    for argument in arguments:
        if argument.name == "x-priority":
            problem = _integer(argument, {})
        elif argument.name == "x-cancel-on-ha-failover" and queue.type == "classic":
            problem = None if argument.type == "bool" else f"{{unacceptable_type,{argument.type}}}"
        elif argument.name in ("x-stream-offset", "x-rewind-to"):
            raise PreconditionFailed(
                f"invalid arg '{argument.name}' for {resource('queue', queue.name, queue.vhost)}"
                f" of queue type {TYPE_MODULES[queue.type]}"
            )
        else:
            problem = None
        if problem is not None:
            raise _invalid(queue.vhost, queue.name, argument, problem)


def check_binding_arguments(exchange: ExchangeDeclared, arguments: tuple[Argument, ...]) -> None:
    """`x-match` of a binding to a headers exchange."""
    if exchange.type != "headers":
        return
    for argument in arguments:
        if argument.name == "x-match":
            if argument.type != "longstr":
                raise PreconditionFailed(
                    f"Invalid x-match field type {argument.type} (value {erlang_term(argument.value)}); "
                    "expected longstr"
                )
            if argument.value not in ("all", "any", "all-with-x", "any-with-x"):
                raise PreconditionFailed(
                    f"Invalid x-match field value {erlang_term(argument.value)}; "
                    "expected all, any, all-with-x, or any-with-x"
                )


def argument_of(arguments: tuple[Argument, ...], name: str) -> Argument | None:
    return next((argument for argument in arguments if argument.name == name), None)


def exchange_named_by(kind: str, name: str, vhost: str, arguments: tuple[Argument, ...], key: str) -> str | None:
    """The exchange that an argument names (a dead-letter or alternate exchange), or None."""
    argument = argument_of(arguments, key)
    if argument is None:
        return None
    if argument.type != "longstr":
        raise PreconditionFailed(f"invalid type '{argument.type}' for arg '{key}' in {resource(kind, name, vhost)}")
    return str(argument.value)


def _invalid(vhost: str, name: str, argument: Argument, problem: str) -> AmqpError:
    return PreconditionFailed(f"invalid arg '{argument.name}' for {resource('queue', name, vhost)}: {problem}")


def _integer(argument: Argument, _given: Arguments) -> Problem:
    return None if argument.type in INTEGER_TYPES else f'"expected integer, got {argument.type}"'


def _number(argument: Argument) -> int:
    assert isinstance(argument.value, int)
    return argument.value


def _not_negative(argument: Argument, given: Arguments) -> Problem:
    problem = _integer(argument, given)
    if problem is None and _number(argument) < 0:
        problem = f"{{value_negative,{_number(argument)}}}"
    return problem


def _positive(argument: Argument, given: Arguments) -> Problem:
    problem = _not_negative(argument, given)
    return "{value_zero,0}" if problem is None and argument.value == 0 else problem


def _message_ttl(argument: Argument, given: Arguments) -> Problem:
    problem = _not_negative(argument, given)
    if problem is None and _number(argument) > MAX_EXPIRY_MS:
        problem = f"{{value_too_large,{_number(argument)}}}"
    return problem


def _expires(argument: Argument, given: Arguments) -> Problem:
    problem = _message_ttl(argument, given)
    return "{value_zero,0}" if problem is None and argument.value == 0 else problem


def _max_priority(argument: Argument, given: Arguments) -> Problem:
    problem = _not_negative(argument, given)
    if problem is None and _number(argument) > 255:
        problem = f"{{max_value_exceeded,{_number(argument)}}}"
    return problem


def _string(argument: Argument, _given: Arguments) -> Problem:
    return None if argument.type == "longstr" else f"{{unacceptable_type,{argument.type}}}"


def _boolean(argument: Argument, _given: Arguments) -> Problem:
    return None if argument.type == "bool" else f"{{unacceptable_type,{argument.type}}}"


def _dead_letter_routing_key(argument: Argument, given: Arguments) -> Problem:
    problem = _string(argument, given)
    if problem is None and "x-dead-letter-exchange" not in given:
        problem = "routing_key_but_no_dlx_defined"
    return problem


def _queue_version(argument: Argument, given: Arguments) -> Problem:
    problem = _not_negative(argument, given)
    if problem is None and argument.value not in (1, 2):
        problem = f"\"unsupported queue version '{_number(argument)}'\""
    return problem


def _one_of(problem: str, *values: str) -> "Callable[[Argument, Arguments], Problem]":
    def check(argument: Argument, given: Arguments) -> Problem:
        wrong_type = _string(argument, given)
        if wrong_type is not None or argument.value in values:
            return wrong_type
        return problem.replace("VALUE", str(argument.value))

    return check


_CHECKS: tuple[tuple[str, Callable[[Argument, Arguments], Problem]], ...] = (
    ("x-expires", _expires),
    ("x-message-ttl", _message_ttl),
    ("x-dead-letter-exchange", _string),
    ("x-dead-letter-routing-key", _dead_letter_routing_key),
    ("x-dead-letter-strategy", _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once")),
    ("x-max-length", _not_negative),
    ("x-max-length-bytes", _not_negative),
    ("x-max-in-memory-length", _not_negative),
    ("x-max-in-memory-bytes", _not_negative),
    ("x-max-priority", _max_priority),
    ("x-overflow", _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx")),
    ("x-queue-mode", _one_of("\"unsupported queue mode 'VALUE'\"", "default", "lazy")),
    ("x-queue-version", _queue_version),
    ("x-single-active-consumer", _boolean),
    ("x-quorum-initial-group-size", _positive),
    ("x-delivery-limit", _not_negative),
    ("x-stream-max-segment-size-bytes", _not_negative),
    ("x-initial-cluster-size", _positive),
    ("x-queue-leader-locator",
     _one_of("invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders")),
)  # fmt: skip


# -- equality with what is declared already (S-067) -------------------------------------------------------------------


def check_queue_equivalence(
    queue: Queue, durable: bool, auto_delete: bool, arguments: tuple[Argument, ...]
) -> None:
    where = resource("queue", queue.name, queue.vhost)
    _same_field(where, "durable", queue.durable, durable)
    _same_field(where, "auto_delete", queue.auto_delete, auto_delete)
    for key in QUEUE_ARGUMENTS[queue.type]:
        _same_argument(where, key, argument_of(queue.arguments, key), argument_of(arguments, key))


def check_exchange_equivalence(
    exchange: ExchangeDeclared, type: str, durable: bool, auto_delete: bool, internal: bool,
    arguments: tuple[Argument, ...],
) -> None:  # fmt: skip
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
