"""The reference of the HTTP API is whole (B-52): no route, no name in a path and no parameter is missing in it."""

import ast
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from rewindmq.engine.http import web
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.reference.document import LISTING, NAME_IN_PATH, NAMES, NUMBERS, document
from rewindmq.engine.http.reference.operation import Folds, Operation, operation, operation_of
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.schemas.views import View
from tests.support.broker_harness import Harness

HTTP = Path(__file__).resolve().parents[2] / "engine" / "http"
# Functions that read a parameter of the query by its name, and the place of that name among their arguments.
READERS = {"asks": 0, "number_of": 1, "time_of": 1, "definition_of": 1, "whole": 1}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Route]:
    """The routes of the application, as the broker serves them."""
    with Harness(tmp_path_factory.mktemp("broker")) as harness:

        async def made() -> Any:
            return make_app(harness.broker, WorkerPool())

        app = harness.loop.run_until_complete(made())
        while not isinstance(app, Starlette):
            app = app.app
        return [route for route in app.routes if isinstance(route, Route)]


def undeclared(routes: list[Route]) -> list[str]:
    """The routes without a declaration, but for the files of the desk."""
    return [route.path for route in routes if operation_of(route.endpoint) is None and route.path not in web.FILES]


def test_b52_every_route_has_a_declaration(routes: list[Route]) -> None:
    assert len(routes) > 180
    assert undeclared(routes) == []


def test_b52_a_route_without_a_declaration_is_found(routes: list[Route]) -> None:
    async def bare(_: object) -> None:
        pass

    assert undeclared([*routes, Route("/api/bare", bare)]) == ["/api/bare"]


def test_b52_every_name_in_a_path_is_described_and_no_other(routes: list[Route]) -> None:
    named = {name for route in routes for name in NAME_IN_PATH.findall(route.path)}
    assert named == {*NAMES, *NUMBERS}


def test_b52_no_declaration_answers_a_method_that_its_route_lacks(routes: list[Route]) -> None:
    """GET answers with content; a DELETE has a body only where the handler reads one."""
    for path, methods in document(routes)["paths"].items():
        for method, each in methods.items():
            assert ("requestBody" in each) <= (method != "get"), f"{method} {path}"
            successes = [status for status in each["responses"] if status < "400"]
            assert successes, f"{method} {path}"


def names_read(tree: ast.AST) -> set[str]:
    """The parameters of the query that code reads by their names."""
    found = set()
    for node in ast.walk(tree):
        arguments: list[ast.expr] = []
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in READERS:
                arguments = node.args[READERS[called] : READERS[called] + 1]
            elif called in ("get", "getlist") and isinstance(node.func, ast.Attribute) and of_query(node.func.value):
                arguments = node.args[:1]
        elif isinstance(node, ast.Subscript) and of_query(node.value):
            arguments = [node.slice]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and of_query(node.comparators[0]):
            arguments = [node.left]
        found |= {each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def of_query(node: ast.expr) -> bool:
    """Return True if an expression is the query of a request."""
    return ast.unparse(node).rpartition(".")[2] in ("query", "query_params")


def test_b52_the_parameters_that_code_reads_are_those_that_are_declared(routes: list[Route]) -> None:
    declared = {each.name for each in LISTING}
    for route in routes:
        found = operation_of(route.endpoint)
        declared |= {each.name for each in found.query} if found is not None else set()
    read = {name for path in HTTP.rglob("*.py") for name in names_read(ast.parse(path.read_text()))}
    by_loop = {"message_id", "correlation_id", "header", "body"}  # criteria_of reads them in a loop
    assert read | by_loop == declared


def test_two_types_of_one_name_are_refused(routes: list[Route]) -> None:
    """A client would get one for the other."""

    class ErrorView(View):
        other: int

    @operation("Answers", folds=Folds.NONE, answer=ErrorView)
    async def twice(_: object) -> None:
        pass

    assert isinstance(operation_of(twice), Operation)
    with pytest.raises(ValueError, match="two types have the name Error"):
        document([*routes, Route("/api/twice", twice)])
