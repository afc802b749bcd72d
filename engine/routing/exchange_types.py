"""What an exchange and its bindings must be, by the exchange's type.

Rules of this file
- Codes and texts are RabbitMQ 3.13's: rabbit_exchange.erl `check_type/1`, rabbit_exchange_type_headers.erl, and of its
  plugins rabbit_exchange_type_consistent_hash.erl and rabbit_exchange_type_delayed_message.erl.
- Pure functions: raise an `AmqpError` or return.
"""

from rewindmq.engine.errors import PreconditionFailed, resource
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE
from rewindmq.engine.routing.matches import HASH_PROPERTIES, type_of, weight
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.metadata_events import ExchangeDeclared
from rewindmq.schemas.values import Argument

EXCHANGE_TYPES = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "x-consistent-hash": "Consistent Hashing Exchange",
    "x-delayed-message": "Delayed Message Exchange.",
    "x-modulus-hash": "Modulus Hashing Exchange",
    "x-random": "AMQP random exchange. Like a direct exchange, but randomly chooses who to route to.",
}


def check_type(name: str) -> None:
    if name not in EXCHANGE_TYPES:
        raise PreconditionFailed(f"{'unknown' if name else 'invalid'} exchange type '{name}'")


def check_arguments(exchange: ExchangeDeclared) -> None:
    arguments = exchange.arguments
    if exchange.type == DELAYED_EXCHANGE:
        delayed = argument_of(arguments, "x-delayed-type")
        if delayed is None or not isinstance(delayed.value, str):
            raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
        if delayed.value == DELAYED_EXCHANGE:
            raise PreconditionFailed(f"Invalid argument, '{DELAYED_EXCHANGE}' can't be used for 'x-delayed-type'")
        check_type(delayed.value)
    if type_of(exchange) == "x-consistent-hash":
        header, named = argument_of(arguments, "hash-header"), argument_of(arguments, "hash-property")
        for argument in (header, named):
            if argument is not None and argument.type != "longstr":
                where = resource("exchange", exchange.exchange, exchange.vhost)
                raise PreconditionFailed(f"invalid type '{argument.type}' for arg '{argument.name}' in {where}")
        if header is not None and named is not None:
            raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
        if named is not None and named.value not in HASH_PROPERTIES:
            raise PreconditionFailed(f"Unsupported property: {named.value!s}")


def check_binding(exchange: ExchangeDeclared, routing_key: str, arguments: tuple[Argument, ...]) -> None:
    kind = type_of(exchange)
    if kind == "headers":
        _check_x_match(argument_of(arguments, "x-match"))
    elif kind == "x-consistent-hash":
        share = weight(routing_key)
        if share is None:
            raise PreconditionFailed(f"The binding key must be an integer: {erlang_term(routing_key)}")
        if share < 1:
            raise PreconditionFailed("The binding key must be greater than 0")


def _check_x_match(argument: Argument | None) -> None:
    if argument is None:
        return
    value = erlang_term(argument.value)
    if argument.type != "longstr":
        raise PreconditionFailed(f"Invalid x-match field type {argument.type} (value {value}); expected longstr")
    if argument.value not in ("all", "any", "all-with-x", "any-with-x"):
        raise PreconditionFailed(f"Invalid x-match field value {value}; expected all, any, all-with-x, or any-with-x")
