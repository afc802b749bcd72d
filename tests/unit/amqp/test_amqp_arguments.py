"""A declaration over AMQP has as many arguments as one over HTTP (docs/operators/limits.md)."""

from typing import Any

import pytest

from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.tables import MAX_ARGUMENTS, MAX_VALUES, arguments, with_length
from tests.support.amqp_wire import Said, Wire, method

METHODS: dict[str, dict[str, Any]] = {
    "Queue.Declare": {"queue": "new"},
    "Queue.Bind": {"queue": "q", "exchange": "amq.headers", "routing_key": ""},
    "Queue.Unbind": {"queue": "q", "exchange": "amq.headers", "routing_key": ""},
    "Exchange.Declare": {"exchange": "new", "exchange_type": "direct"},
    "Exchange.Bind": {"source": "amq.headers", "destination": "amq.fanout"},
    "Exchange.Unbind": {"source": "amq.headers", "destination": "amq.fanout"},
    "Basic.Consume": {"queue": "q"},
}


def told(name: str, count: int) -> Said:
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q")
    wire.ask(1, "Queue.Bind", **METHODS["Queue.Bind"])
    wire.ask(1, "Exchange.Bind", **METHODS["Exchange.Bind"])
    given = {f"a{number}": None for number in range(count)}
    (said,) = wire.send(method(1, name, arguments=given, **METHODS[name]))
    return said


@pytest.mark.parametrize("name", METHODS)
def test_too_many_arguments_are_refused(name: str) -> None:
    refused = told(name, MAX_ARGUMENTS + 1)
    assert (refused.name, refused.reply_code) == ("Channel.Close", 406)
    assert (
        refused.reply_text
        == f"PRECONDITION_FAILED - there are {MAX_ARGUMENTS + 1} arguments, more than {MAX_ARGUMENTS}"
    )
    assert told(name, MAX_ARGUMENTS).name == name + "Ok"


def nested(kind: bytes, item: bytes, count: int) -> bytes:
    """One argument with so many items in a table or an array."""
    return b"\x01a" + kind + with_length(item * count)


@pytest.mark.parametrize(
    ("kind", "item", "values"),
    [(b"A", b"V", 1), (b"F", b"\x00V", 1), (b"A", b"F" + with_length(b"\x00V"), 2), (b"A", b"A" + with_length(b""), 1)],
    ids=["array", "table", "tables in an array", "arrays in an array"],
)
def test_nested_values_count(kind: bytes, item: bytes, values: int) -> None:
    most = (MAX_VALUES - 1) // values
    assert len(arguments(nested(kind, item, most))) == 1
    with pytest.raises(Unacceptable, match=f"the arguments have more than {MAX_VALUES} values"):
        arguments(nested(kind, item, most + 1))
