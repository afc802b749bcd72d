"""Checks a queue's arguments: which ones each type of queue takes, and which values.

Names, order and texts are RabbitMQ 3.13's (rabbit_amqqueue.erl `declare_args/0`, `capabilities/0` of each queue type),
and x-message-deduplication is its plugin's.
The broker checks declarations with it (engine/broker/declarations.py), and Spark the candidates of `what-if`.
"""

from collections.abc import Callable

from rewindmq.projections.machine.rules.profile import RABBITMQ_4_3
from rewindmq.projections.machine.rules.settings import age_ms
from rewindmq.schemas.values import Argument

MAX_EXPIRY_MS = 315_360_000_000  # ten years, rabbit_misc.erl `check_expiry/1` (S-036)
INTEGER_TYPES = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")

# Declaration arguments by queue type, in the order in which equality is checked (`capabilities/0` of each type).
QUEUE_ARGUMENTS = {
    "classic": (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-master-locator",
        "x-message-deduplication",
    ),
    "quorum": (
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
        "x-queue-leader-locator",
        "x-message-deduplication",
    ),
    "stream": (
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
ALL_ARGUMENTS = frozenset(name for names in QUEUE_ARGUMENTS.values() for name in names)
# Arguments of profile rabbitmq-4.3 (rabbit_quorum_queue.erl capabilities/0, 4.3).
OF_RABBITMQ_4_3 = (
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-consumer-timeout",
    "x-consumer-disconnected-timeout",
)

Problem = str | None  # the Erlang term for the fault in an argument
Arguments = dict[str, Argument]


def argument_of(arguments: tuple[Argument, ...], name: str) -> Argument | None:
    """The argument of this name, of a queue, an exchange, a binding or a consumer; None: there is none."""
    return next((argument for argument in arguments if argument.name == name), None)


def value_problem(argument: Argument, given: Arguments, semantics: str) -> Problem:
    """The fault in an argument's type or value, beside the other arguments that are `given`; None if there is none.

    RabbitMQ 4.3 takes any value of x-delivery-limit and of the delayed-retry arguments; a value that is not a number
    means that none is set."""
    if argument.name not in _CHECKS or (semantics == RABBITMQ_4_3.name and argument.name == "x-delivery-limit"):
        return None
    return _CHECKS[argument.name](argument, given)


def integer(argument: Argument, _given: Arguments) -> Problem:
    """The fault in an argument that has to be an integer; None if there is none."""
    return None if argument.type in INTEGER_TYPES else f'"expected integer, got {argument.type}"'


def _number(argument: Argument) -> int:
    assert isinstance(argument.value, int)
    return argument.value


def not_negative(argument: Argument, given: Arguments) -> Problem:
    """The fault in an argument that has to be an integer from 0 on; None if there is none."""
    problem = integer(argument, given)
    if problem is None and _number(argument) < 0:
        problem = f"{{value_negative,{_number(argument)}}}"
    return problem


def _positive(argument: Argument, given: Arguments) -> Problem:
    problem = not_negative(argument, given)
    return "{value_zero,0}" if problem is None and argument.value == 0 else problem


def _message_ttl(argument: Argument, given: Arguments) -> Problem:
    problem = not_negative(argument, given)
    if problem is None and _number(argument) > MAX_EXPIRY_MS:
        problem = f"{{value_too_large,{_number(argument)}}}"
    return problem


def _expires(argument: Argument, given: Arguments) -> Problem:
    problem = _message_ttl(argument, given)
    return "{value_zero,0}" if problem is None and argument.value == 0 else problem


def _max_priority(argument: Argument, given: Arguments) -> Problem:
    problem = not_negative(argument, given)
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
    problem = not_negative(argument, given)
    if problem is None and argument.value not in (1, 2):
        problem = f"\"unsupported queue version '{_number(argument)}'\""
    return problem


def _max_age(argument: Argument, given: Arguments) -> Problem:
    problem = _string(argument, given)
    return "invalid_max_age" if problem is None and age_ms(str(argument.value)) is None else problem


def one_of(problem: str, *values: str) -> "Callable[[Argument, Arguments], Problem]":
    """A check that an argument is one of these texts; else it says `problem`, with the value for the word VALUE."""

    def check(argument: Argument, given: Arguments) -> Problem:
        wrong_type = _string(argument, given)
        if wrong_type is not None or argument.value in values:
            return wrong_type
        return problem.replace("VALUE", str(argument.value))

    return check


_CHECKS: dict[str, Callable[[Argument, Arguments], Problem]] = {
    "x-expires": _expires,
    "x-message-ttl": _message_ttl,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _dead_letter_routing_key,
    "x-dead-letter-strategy": one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": not_negative,
    "x-max-length-bytes": not_negative,
    "x-max-in-memory-length": not_negative,
    "x-max-in-memory-bytes": not_negative,
    "x-max-priority": _max_priority,
    "x-overflow": one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": one_of("\"unsupported queue mode 'VALUE'\"", "default", "lazy"),
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _boolean,
    "x-message-deduplication": _boolean,
    "x-consumer-timeout": not_negative,
    "x-consumer-disconnected-timeout": not_negative,
    "x-quorum-initial-group-size": _positive,
    "x-delivery-limit": not_negative,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": not_negative,
    "x-initial-cluster-size": _positive,
    "x-queue-leader-locator": one_of(
        "invalid_queue_locator_arg",
        "client-local",
        "balanced",
        "random",
        "least-leaders",
    ),
}
CHECKED = tuple(_CHECKS)  # in this order
