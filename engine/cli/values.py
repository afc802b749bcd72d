"""Values as rabbitmqctl prints them. As there, each formatter prints a value in its own way:

an argument         table, csv    [{"x-max-length",7},{"x-queue-type","quorum"}]
                    pretty_table  {<<"x-max-length">>,long,7}{<<"x-queue-type">>,longstr,<<"quorum">>}
                    json          [["x-max-length","long",7],["x-queue-type","longstr","quorum"]]
"""

from dataclasses import dataclass

from rewindmq.schemas.json_values import json_text

Value = object  # None | bool | int | float | str | list | Arguments | Definition


@dataclass(frozen=True, slots=True)
class Arguments:
    """An AMQP table: (name, AMQP type, value) in order."""

    entries: tuple[tuple[str, str, object], ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A merged policy definition."""

    entries: tuple[tuple[str, object], ...]


def arguments_of(item: dict[str, object]) -> Arguments:
    """Return the `arguments` of an answer of the API, with the AMQP types of its `argument_types`, or types that fit
    JSON."""
    types = item.get("argument_types")
    return table_of(item.get("arguments"), types if isinstance(types, dict) else {})


def client_properties_of(item: dict[str, object]) -> Arguments:
    """Return the `client_properties` of a connection."""
    return table_of(item.get("client_properties"), {})


def table_of(table: object, types: dict[str, object]) -> Arguments:
    """Return a JSON object as an AMQP table. `types`: the AMQP type of each name, where it is known."""
    if not isinstance(table, dict):
        return Arguments(())
    return Arguments(tuple((name, str(types.get(name, type_name(value))), value) for name, value in table.items()))


def type_name(value: object) -> str:
    """Return the AMQP type that fits a JSON value."""
    match value:
        case bool():
            return "bool"
        case int():
            return "long"
        case float():
            return "double"
        case None:
            return "void"
        case list():
            return "array"
        case dict():
            return "table"
        case _:
            return "longstr"


# -- table and csv


def table_text(value: Value) -> str:
    """Return a value in a table, or in csv."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Arguments():
            return "[" + ",".join(f"{{{quoted(name)},{short_term(inner)}}}" for name, _, inner in value.entries) + "]"
        case Definition():
            return "[" + ", ".join(f"{{{binary(name)}, {loose(inner)}}}" for name, inner in value.entries) + "]"
        case list():
            return "[" + ", ".join(table_text(inner) for inner in value) + "]"
        case dict():
            return "#{" + ", ".join(f"{name} => {table_text(inner)}" for name, inner in sorted(value.items())) + "}"
        case _:
            return str(value)


def loose(value: object) -> str:
    """Return a value of a policy definition in a table: a text without quotes."""
    return value if isinstance(value, str) else short_term(value)


def short_term(value: object) -> str:
    """Return an Erlang term without AMQP types."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "undefined"
        case str():
            return quoted(value)
        case list():
            return "[" + ",".join(short_term(inner) for inner in value) + "]"
        case dict():
            return "[" + ",".join(f"{{{quoted(name)},{short_term(inner)}}}" for name, inner in value.items()) + "]"
        case _:
            return str(value)


def quoted(text: str) -> str:
    """Return an Erlang string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def binary(text: str) -> str:
    """Return an Erlang binary."""
    return f"<<{quoted(text)}{'' if text.isascii() else '/utf8'}>>"


# -- pretty_table


def pretty(value: Value) -> str:
    """Return a value in a pretty_table."""
    match value:
        case Arguments():
            return "".join(f"{{{binary(name)},{kind},{typed_term(inner)}}}" for name, kind, inner in value.entries)
        case Definition():
            return "".join(f"{{{binary(name)},{typed_term(inner)}}}" for name, inner in value.entries)
        case list():
            return "".join(pretty(inner) for inner in value)
        case _:
            return table_text(value)


def typed_term(value: object) -> str:
    """Return an Erlang term of an AMQP value, its inner values with their types."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "undefined"
        case str():
            return binary(value)
        case list():
            return "[" + ",".join(f"{{{type_name(each)},{typed_term(each)}}}" for each in value) + "]"
        case dict():
            inner = [f"{{{binary(k)},{type_name(v)},{typed_term(v)}}}" for k, v in value.items()]
            return "[" + ",".join(inner) + "]"
        case _:
            return str(value)


# -- erlang


def erlang_term(value: Value) -> str:
    """Return a value in the formatter erlang."""
    match value:
        case None:
            return "''"
        case Arguments():
            terms = (f"{{{binary(name)},{kind},{typed_term(inner)}}}" for name, kind, inner in value.entries)
            return f"[{','.join(terms)}]"
        case Definition():
            return "[" + ",".join(f"{{{binary(name)},{typed_term(inner)}}}" for name, inner in value.entries) + "]"
        case list():
            return "[" + ",".join(erlang_term(inner) for inner in value) + "]"
        case dict():
            return "#{" + ",".join(f"{binary(name)} => {erlang_term(inner)}" for name, inner in value.items()) + "}"
        case _:
            return typed_term(value)


# -- json


def jsonable(value: Value) -> object:
    """Return a value in the formatters json and json_stream."""
    match value:
        case None:
            return ""
        case Arguments():
            return [[name, kind, inner] for name, kind, inner in value.entries]
        case Definition():
            return dict(value.entries)
        case _:
            return value


def json_line(row: dict[str, Value]) -> str:
    """Return a row as a JSON object on one line."""
    return json_text({name: jsonable(value) for name, value in row.items()}, ensure_ascii=False, separators=(",", ":"))
