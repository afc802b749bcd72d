"""Arguments of AMQP declarations as JSON, and back, by RabbitMQ's rules for its HTTP API.

Whole numbers become `long`, other numbers `double`, strings `longstr`, lists `array`, objects `table`. JSON cannot tell
AMQP's types apart, so answers have them beside the arguments (`argument_types`, our addition). `list_queues` prints
them as rabbitmqctl does (S-164).

History keeps nested tables and arrays as JSON text (rewindmq.schemas.values.ArgumentValue).
"""

import base64
import json

from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.tables import require_few
from rewindmq.schemas.json_values import Json
from rewindmq.schemas.values import Argument, ArgumentValue

MAX_BYTES = 131_072  # of all arguments together, which over AMQP arrive in one frame


def arguments_from(table: Json) -> tuple[Argument, ...]:
    """Return the arguments in a request or a definition.

    Raises Unacceptable if they are not arguments, or too many."""
    if table is None or table == []:
        return ()
    if not isinstance(table, dict):
        raise Unacceptable("arguments must be a JSON object")
    require_few(len(table))
    found = tuple(_argument(name, value) for name, value in table.items())
    if sum(len(each.name) + len(str(each.value)) for each in found) > MAX_BYTES:
        raise Unacceptable(f"the arguments are larger than {MAX_BYTES} bytes")
    return found


def _argument(name: str, value: Json) -> Argument:
    if len(name.encode()) > 255:
        raise Unacceptable(f"argument name longer than 255 bytes: {name[:40]}...")
    match value:
        case bool():
            return Argument(name, "bool", value)
        case int():
            return Argument(name, "long", value)
        case float():
            return Argument(name, "double", value)
        case str():
            return Argument(name, "longstr", value)
        case None:
            return Argument(name, "void", None)
        case _:
            kind = "array" if isinstance(value, list) else "table"
            return Argument(name, kind, json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False))


def table_of(arguments: tuple[Argument, ...]) -> dict[str, Json]:
    """Return arguments as a JSON object, in the order of their declaration."""
    return {argument.name: _json(argument.value, argument.type) for argument in arguments}


def types_of(arguments: tuple[Argument, ...]) -> dict[str, str]:
    """Return RabbitMQ's name of each argument's type, by the argument's name."""
    return {argument.name: argument.type for argument in arguments}


def _json(value: ArgumentValue, type_name: str) -> Json:
    if isinstance(value, bytes):
        return text_of(value)
    if type_name in ("table", "array") and isinstance(value, str):
        nested: Json = json.loads(value)
        return nested
    return value


def text_of(value: bytes) -> str:
    """Return bytes as text: UTF-8 unchanged, other bytes in base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
