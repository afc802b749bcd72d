"""Values and tables as rabbitmqctl prints them, without a broker; expected texts are RabbitMQ 3.10.8's."""

import json

import pytest

from rewindmq.engine.cli.exits import CliError
from rewindmq.engine.cli.formatters import FORMATTERS, Rows, one_line, width
from rewindmq.engine.cli.values import Arguments, arguments_of, jsonable, pretty, table_text

KINDS = Arguments(
    (
        ("x-queue-type", "longstr", "quorum"),
        ("x-max-length", "signedint", 7),
        ("x-b", "bool", True),
        ("x-big", "long", 1099511627776),
        ("x-f", "double", 1.5),
    )
)


def test_arguments_in_each_formatter_s164() -> None:
    assert table_text(KINDS) == (
        '[{"x-queue-type","quorum"},{"x-max-length",7},{"x-b",true},{"x-big",1099511627776},{"x-f",1.5}]'
    )
    assert pretty(KINDS) == (
        '{<<"x-queue-type">>,longstr,<<"quorum">>}{<<"x-max-length">>,signedint,7}{<<"x-b">>,bool,true}'
        '{<<"x-big">>,long,1099511627776}{<<"x-f">>,double,1.5}'
    )
    assert json.dumps(jsonable(KINDS)).startswith('[["x-queue-type", "longstr", "quorum"], ["x-max-length", ')


def test_nested_arguments() -> None:
    nested = arguments_of({"arguments": {"x-l": [1, "a", True], "x-t": {"k": 1.5}}})
    assert table_text(nested) == '[{"x-l",[1,"a",true]},{"x-t",[{"k",1.5}]}]'
    assert pretty(nested) == (
        '{<<"x-l">>,array,[{long,1},{longstr,<<"a">>},{bool,true}]}{<<"x-t">>,table,[{<<"k">>,double,1.5}]}'
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        ("text", "text"),
        (["administrator"], "[administrator]"),
        ([], "[]"),
        (Arguments(()), "[]"),
        ({"a": 1, "b": [True]}, "#{a => 1, b => [true]}"),
    ],
)
def test_plain_values(value: object, shown: str) -> None:
    assert table_text(value) == shown


def test_a_pretty_table_is_as_wide_as_its_widest_characters() -> None:
    rows: Rows = [{"name": "队列", "n": 1}, {"name": "e\u0301", "n": None}, {"name": "tab\there", "n": 22}]
    lines = FORMATTERS["pretty_table"](("name", "n"), rows, True)
    assert len({width(line) for line in lines}) == 1
    assert lines[3].startswith("│ 队列 ")
    assert "tab\\there" in lines[7]


def test_strange_characters_do_not_break_a_line() -> None:
    assert one_line("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    rows: Rows = [{"name": 'quote " and, comma'}]
    assert FORMATTERS["csv"](("name",), rows, True)[1] == '"quote "" and, comma"'


def test_an_error_is_one_line() -> None:
    refusal = CliError(65, "Validation failed\n\nno policy provided\npattern should be regular expression\n")
    assert refusal.line == "Validation failed: no policy provided; pattern should be regular expression"
