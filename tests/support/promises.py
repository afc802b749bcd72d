"""The names that docs/stability.md promises: what programs call, read and import.

    python -m tests.support.promises      prints them

`make release` writes them to tests/promises.json. From then on `tests/tidy/test_stability.py` fails if one of them is
gone. A removal that an earlier minor version has announced takes its name out of the file.
"""

import ast
import inspect
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from starlette.applications import Starlette

import rewindmq.spark
from rewindmq.engine.cli import exits
from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.cli.main import rewindmq as commands
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.reference.document import document
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.schemas import producer
from rewindmq.spark_replay.__main__ import main as spark_commands
from rewindmq.spark_replay.dictionary import TABLES
from rewindmq.spark_replay.source.options import VIEWS
from tests.support import columns_page, outputs_page
from tests.support.broker_harness import Harness
from tests.support.running import ROOT

FILE = ROOT / "tests" / "promises.json"
METRIC = re.compile(r"rewindmq_[a-z_]+")  # tests/system/http/test_http_metrics.py has RabbitMQ's
# Paths that only our own programs use, of any one version.
BETWEEN_OUR_PROGRAMS = ("/api/state", "/api/leader", "/api/followers")
Schema = dict[str, Any]
Promise = tuple[str, str]  # a thing, and a name of it: a command and an option, a table and a column


def promises() -> dict[str, set[str]]:
    """Return the names of each thing that is promised, by the thing."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in of_commands, of_settings, of_exit_codes, of_outputs, of_http, of_metrics, of_spark, of_imports:
        for thing, name in source():
            found[thing].add(name)
    return found


def text_of(promised: dict[str, set[str]]) -> str:
    """Return the file's text: JSON, a line for each thing."""
    lines = (f"{json.dumps(thing)}: {json.dumps(sorted(names))}" for thing, names in sorted(promised.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(text: str) -> dict[str, set[str]]:
    """Return what `text_of` has written."""
    return {thing: set(names) for thing, names in json.loads(text).items()}


def broken(released: dict[str, set[str]], today: dict[str, set[str]]) -> list[str]:
    """Return each promise of a release that today's program does not keep."""
    return sorted(f"{thing}: {name}" for thing in released for name in released[thing] - today.get(thing, set()))


def of_commands() -> Iterator[Promise]:
    for program, group in ("rewindmq", commands), ("rewindmq spark", spark_commands):
        for name, command in commands_of(group).items():
            yield f"{program} {name}", "exists"
            for each in command.params:
                if isinstance(each, click.Option) and not each.hidden:
                    yield from ((f"{program} {name}", option) for option in (*each.opts, *each.secondary_opts))


def of_settings() -> Iterator[Promise]:
    yield from (("settings", name) for name in SETTINGS)


def of_exit_codes() -> Iterator[Promise]:
    yield from (("exit codes", f"{code} {name}") for name, code in vars(exits).items() if isinstance(code, int))


def of_outputs() -> Iterator[Promise]:
    for output in outputs_page.every_output().values():
        schema = output.document()
        yield from ((f"output {schema['$id']}", name) for name in fields("", schema))
        for name, each in schema.get("$defs", {}).items():
            yield from ((f"output {schema['$id']} {name}", field) for field in fields("", each))


def of_http() -> Iterator[Promise]:
    described = http_document()
    for path, methods in described["paths"].items():
        if path.startswith(BETWEEN_OUR_PROGRAMS):
            continue
        for method, each in methods.items():
            operation = f"http {method.upper()} {path}"
            yield operation, "exists"
            for parameter in each.get("parameters", []):
                yield operation, f"parameter {parameter.get('name') or kind_of(parameter)}"
            for status, answer in each["responses"].items():
                for content in answer.get("content", {}).values():
                    yield operation, f"status {status}"
                    yield from ((operation, name) for name in fields(status, content["schema"]))
    for name, each in described["components"]["schemas"].items():
        yield from ((f"http {name}", field) for field in fields("", each))


def http_document() -> Schema:
    """Return the OpenAPI document of a broker."""
    with tempfile.TemporaryDirectory() as directory, Harness(Path(directory)) as harness:

        async def made() -> Any:
            return make_app(harness.broker, WorkerPool())

        app = harness.loop.run_until_complete(made())
        while not isinstance(app, Starlette):
            app = app.app
        return document(app.routes)


def of_metrics() -> Iterator[Promise]:
    for path in (ROOT / "engine" / "http" / "metrics").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and METRIC.fullmatch(node.value):
                yield "metrics", node.value


def of_spark() -> Iterator[Promise]:
    for name, table in TABLES.items():
        yield from ((f"table {name}", f"{each.name} {columns_page.type_name(each.type)}") for each in table.columns)
    for view, options in VIEWS.items():
        yield from ((f"view {view}", option) for option in options)


def of_imports() -> Iterator[Promise]:
    yield from (("rewindmq.spark", name) for name in rewindmq.spark.__all__)
    for name, called in ("Publisher", producer.Publisher), ("Publisher.record", producer.Publisher.record):
        yield from ((f"rewindmq.schemas.producer {name}", each) for each in inspect.signature(called).parameters)
    yield from (("rewindmq.schemas.producer Record", name) for name in producer.Record._fields)


def fields(prefix: str, schema: Schema) -> Iterator[str]:
    """Yield the path and the type of each field of a JSON schema."""
    for name, each in schema.get("properties", {}).items():
        yield f"{prefix}.{name} {kind_of(each)}"
        yield from fields(f"{prefix}.{name}", each)
    for key in "items", "additionalProperties":
        if isinstance(schema.get(key), dict):
            yield from fields(f"{prefix}[]", schema[key])
    for each in (*schema.get("anyOf", []), *schema.get("prefixItems", [])):
        yield from fields(prefix, each)
    if "$ref" in schema:
        yield f"{prefix} {kind_of(schema)}"


def kind_of(schema: Schema) -> str:
    """Return the type of a JSON schema in a word."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = schema.get("type", "any")
    return "|".join(kind) if isinstance(kind, list) else str(kind)


if __name__ == "__main__":
    print(text_of(promises()), end="")
