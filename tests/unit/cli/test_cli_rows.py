"""Each row of the command line asks for an operation of the HTTP API that exists (engine/cli/rows.py)."""

import importlib
import pkgutil
import string
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import click
import pytest

from rewindmq.engine.cli import commands
from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.main import rewindmq
from rewindmq.engine.cli.rows import Row
from rewindmq.engine.cli.usage import OPTIONS
from rewindmq.engine.http.app import ROUTES
from rewindmq.engine.http.reference.operation import Operation, operation_of
from rewindmq.engine.http.resources import health

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker


def rows() -> Iterator[Row]:
    """The rows that are commands, and those by which a command with more than one way asks the broker."""
    for command in commands_of(rewindmq).values():
        row = getattr(getattr(command.callback, "__wrapped__", None), "__self__", None)
        if isinstance(row, Row):
            yield row
    for module in pkgutil.iter_modules(commands.__path__):
        found = importlib.import_module(f"{commands.__name__}.{module.name}")
        yield from (each for each in vars(found).values() if isinstance(each, Row))


ROWS = list(rows())
# The checks that need no login are routes of their own. Making them asks nothing of a broker.
READY = {
    route.path.removeprefix("/api"): {"GET": route.endpoint} for route in health.ready_routes(cast("Broker", None))
}


def names_in(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def paths(row: Row) -> Iterator[list[str]]:
    """The segments of the row's path, as often as an argument or option that may be left out makes another path."""
    found: list[list[str]] = [[]]
    params = {param.name: param for param in row.command().params}
    for segment in row.path.split("/"):
        param = params.get(segment.strip("{}"))
        value = param.flag_value if isinstance(param, click.Option) and param.is_flag else segment
        may_lack = param is not None and not param.required and param.default is None
        found = [path + more for path in found for more in ([[value], []] if may_lack else [[value]])]
    yield from found


def operation_for(method: str, path: list[str]) -> Operation | None:
    """The operation that answers, as the router finds it: the first route that fits."""
    for route, methods in (ROUTES | READY).items():
        segments = route.strip("/").split("/")
        fits = [asked == there or there.startswith("{") for asked, there in zip(path, segments, strict=False)]
        if len(path) == len(segments) and all(fits) and method in methods:
            return operation_of(methods[method])
    return None


def faults_of(row: Row) -> list[str]:
    """The differences of a row from the operations."""
    known = {param.name for param in row.command().params if param not in OPTIONS} | {"vhost", "node", "reason"}
    named = names_in(row.path) | {name.replace("-", "_") for name in row.query}
    body = set(row.body.split()) if isinstance(row.body, str) else set()
    faults = [f"{name} is no argument, and no option" for name in sorted((named | body) - known)]
    for path in paths(row):
        operation = operation_for(row.method, path)
        if operation is None:
            faults.append(f"no operation {row.method} /{'/'.join(path)}")
            continue
        faults += [f"the API has no ?{name}" for name in set(row.query) - {each.name for each in operation.query}]
        if row.body and operation.body is None:
            faults.append("the API takes no content")
        elif body:
            faults += [f"the content has no {name}" for name in body - set(typing.get_type_hints(operation.body))]
    return faults


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.usage.split()[0])
def test_a_row_asks_for_an_operation_of_the_api(row: Row) -> None:
    assert faults_of(row) == []


def test_rows_are_found() -> None:
    assert len(ROWS) > 75
    assert {"GET", "PUT", "POST", "DELETE"} == {row.method for row in ROWS}


@pytest.mark.parametrize(
    ("request_", "body", "fault"),
    [
        ("GET userz", "", "no operation GET /userz"),
        ("POST users/{name}", "", "no operation POST /users/{name}"),
        ("GET quarantine?name", "", "the API has no ?name"),
        ("GET users/{user}", "", "user is no argument, and no option"),
        ("GET users/{name}", "name", "the API takes no content"),
        ("PUT cluster-name", "name vhost", "the content has no vhost"),
        ("GET health/checks/{name}", "", "no operation GET /health/checks/{name}"),
    ],
)
def test_a_row_without_an_operation_is_found(request_: str, body: str, fault: str) -> None:
    assert fault in faults_of(Row("planted NAME", "Plant a fault.", "", request_, body=body))
