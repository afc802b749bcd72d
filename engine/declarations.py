"""What a declaration must be: arguments of queues and consumers, and equality with what is declared already.

Rules of this file
- Codes and texts are RabbitMQ 3.13's, word for word (rabbit_amqqueue.erl `declare_args/0`, rabbit_misc.erl
  `equivalence_fail/4`, rabbit_queue_type_util.erl); values print as Erlang terms, as clients of RabbitMQ see them.
- An `x-` key that no queue type knows is accepted, a key of another type is refused (S-072).
- What a node of an older version on the same Kafka would not know is refused, never ignored.
- Pure functions: raise an `AmqpError` or return.
"""

from collections.abc import Callable

from engine.errors import AccessRefused, AmqpError, NotImplementedByBroker, PreconditionFailed, ResourceLocked
from projections.machine.profile import PROFILES, RABBITMQ_3_13, RABBITMQ_4_3
from projections.machine.queue import Queue
from projections.machine.settings import age_ms
from schemas.events import Argument, ExchangeDeclared, LeaseRenewed, QueueDeclared

MAX_EXPIRY_MS = 315_360_000_000  # ten years, rabbit_misc.erl `check_expiry/1` (S-036)
INTEGER_TYPES = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")
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
# Of profile rabbitmq-4.3 (rabbit_quorum_queue.erl capabilities/0, 4.3).
OF_RABBITMQ_4_3 = (
    "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-consumer-timeout",
    "x-consumer-disconnected-timeout",
)  # fmt: skip
SEMANTICS_ARGUMENT = "x-semantics"  # ours: the queue's profile, where it shall not be the node's
SINCE_VERSION_2 = ("x-max-priority", "x-single-active-consumer", SEMANTICS_ARGUMENT)  # of the machine

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
        return f'<<"{value}">>' if value else "<<>>"
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


def with_default_type(
    default: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: tuple[Argument, ...]
) -> tuple[Argument, ...]:
    """The arguments of a queue of a vhost that has a default queue type ("": none): without `x-queue-type` they get it,
    or classic where a queue of that type can't be so (rabbit_amqqueue.erl `augment_declare_args/5`)."""
    if default == "" or any(argument.name == "x-queue-type" for argument in arguments):
        return arguments
    fits = durable and not exclusive and not auto_delete
    return (*arguments, Argument("x-queue-type", "longstr", default if fits else "classic"))


def semantics_of(vhost: str, name: str, arguments: tuple[Argument, ...], default: str) -> str:
    """The name of the queue's profile."""
    argument = argument_of(arguments, SEMANTICS_ARGUMENT)
    if argument is None:
        return default
    problem = _one_of("\"unsupported semantics 'VALUE'\"", *PROFILES)(argument, {})
    if problem is not None:
        raise _invalid(vhost, name, argument, problem)
    return str(argument.value)


def check_queue_arguments(
    vhost: str, name: str, kind: str, arguments: tuple[Argument, ...], semantics: str = RABBITMQ_3_13.name
) -> None:
    """Each argument's type and value, then keys that belong to another queue type. RabbitMQ 4.3 takes whatever a
    delivery limit or delayed retry is said to be; what is no number is none."""
    given = {argument.name: argument for argument in arguments}
    later = semantics == RABBITMQ_4_3.name
    known = (*QUEUE_ARGUMENTS[kind], *OF_RABBITMQ_4_3) if later and kind == "quorum" else QUEUE_ARGUMENTS[kind]
    for key, check in _CHECKS:
        if key in given and key in known and not (later and key == "x-delivery-limit"):
            problem = check(given[key], given)
            if problem is not None:
                raise _invalid(vhost, name, given[key], problem)
    for argument in arguments:
        foreign = argument.name in ALL_ARGUMENTS and argument.name not in QUEUE_ARGUMENTS[kind]
        if foreign or (later and kind != "quorum" and argument.name in OF_RABBITMQ_4_3):
            raise PreconditionFailed(
                f"invalid arg '{argument.name}' for {resource('queue', name, vhost)} of queue type {TYPE_MODULES[kind]}"
            )


def check_machine_version(vhost: str, name: str, kind: str, arguments: tuple[Argument, ...], version: int) -> None:
    """While a node of an older version is alive on the same Kafka, no queue gets what that node would not know of."""
    if version >= 2:
        return
    where = resource("queue", name, vhost)
    if kind == "stream":
        raise NotImplementedByBroker(f"{where}: queue type 'stream' is not known to all nodes yet")
    for argument in arguments:
        if argument.name in SINCE_VERSION_2 and argument.value is not False:
            raise PreconditionFailed(f"invalid arg '{argument.name}' for {where}: not known to all nodes yet")


def check_exclusive_use(queue: Queue, exclusive: bool) -> None:
    """An exclusive consumer is alone; of a queue with a single active consumer there is none (S-110)."""
    alone = exclusive or any(each.exclusive for each in queue.consumers())
    if alone and (queue.consumer_count() > 0 or queue.single_active):
        raise AccessRefused(f"{resource('queue', queue.name, queue.vhost)} in exclusive use")


def check_fetch(queue: Queue) -> None:
    """basic.get (S-110)."""
    if queue.stream:
        where = resource("queue", queue.name, queue.vhost)
        raise NotImplementedByBroker(f"basic.get not supported by stream queues {where}")
    if queue.type == "quorum" and queue.single_active:
        raise ResourceLocked(
            f"cannot obtain access to locked {resource('queue', queue.name, queue.vhost)}. basic.get operations are not"
            " supported by quorum queues with single active consumer"
        )


def check_queue_properties(
    vhost: str, name: str, kind: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """What a quorum queue cannot be (S-079, S-087)."""
    if kind == "classic":
        return
    for wrong, text in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise PreconditionFailed(f"invalid property '{text}' for {resource('queue', name, vhost)}")


def renewal(queue: Queue, machine_version: int) -> LeaseRenewed | QueueDeclared:
    """What is logged when a queue that exists is declared again. Nodes of before version 2 know it as a declaration,
    which brings the queue back if another node deletes it in the same moment."""
    if machine_version >= 2:
        return LeaseRenewed(queue.vhost, queue.name, queue.queue_id)
    return QueueDeclared(
        queue.vhost, queue.name, queue.type, queue.durable, queue.exclusive, queue.auto_delete, queue.owner,
        queue.arguments, queue.semantics, queue.policy, queue.operator_policy,
    )  # fmt: skip


def check_consumer_arguments(queue: Queue, arguments: tuple[Argument, ...]) -> None:
    for argument in arguments:
        if argument.name == "x-priority":
            problem = _integer(argument, {})
        elif argument.name == "x-cancel-on-ha-failover" and queue.type == "classic":
            problem = None if argument.type == "bool" else f"{{unacceptable_type,{argument.type}}}"
        elif argument.name == "x-consumer-timeout" and queue.quorum and queue.profile.overdue_returns:
            problem = _not_negative(argument, {})
        else:
            problem = None
        if problem is not None:
            raise _invalid(queue.vhost, queue.name, argument, problem)


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


def _max_age(argument: Argument, given: Arguments) -> Problem:
    problem = _string(argument, given)
    return "invalid_max_age" if problem is None and age_ms(str(argument.value)) is None else problem


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
    ("x-consumer-timeout", _not_negative),
    ("x-consumer-disconnected-timeout", _not_negative),
    ("x-quorum-initial-group-size", _positive),
    ("x-delivery-limit", _not_negative),
    ("x-max-age", _max_age),
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
    later = OF_RABBITMQ_4_3 if queue.quorum and queue.semantics == RABBITMQ_4_3.name else ()
    for key in (*QUEUE_ARGUMENTS[queue.type], *later, SEMANTICS_ARGUMENT):
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
