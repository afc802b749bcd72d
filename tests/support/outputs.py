"""Holds what a command printed against the published schema of its output (docs/outputs/).

Strict: a field that the schema does not name is a fault, though programs are told to bear with new ones.
"""

import json
from collections.abc import Iterator
from typing import Any

import click

from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.main import rewindmq
from rewindmq.schemas.json_schemas import LINES, LIST, JsonOutput
from rewindmq.spark_replay.__main__ import main as spark_commands
from tests.support.needs import require_pure
from tests.support.outputs_page import file_of
from tests.support.reference_document import closed, faults_of


def judged(output: JsonOutput, text: str) -> list[Any]:
    """The values that were printed, at least one, each as the schema says."""
    printed = [json.loads(line) for line in text.splitlines()] if output.form == LINES else [json.loads(text)]
    schema = closed(json.loads(file_of(output).read_text()))
    faults = [fault for value in printed for fault in faults_of(schema, value)]
    assert not faults, f"{output.name}: " + "; ".join(faults[:5])
    values: list[Any] = printed[0] if output.form == LIST else printed
    assert values, f"{output.name}: nothing was printed, so nothing is shown"
    return values


def require_types() -> None:
    """Skip the test where the compiled build runs: it cannot make schemas."""
    require_pure("schemas are made of the types of fields, and a compiled class does not keep them whole")


def with_json(group: click.Group) -> Iterator[str]:
    """Yields the commands of a program that have --format json."""
    for name, command in commands_of(group).items():
        assert not isinstance(command, click.Group), f"{name}: look into it, too"
        for parameter in command.params:
            choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else [parameter.default]
            if "--format" in parameter.opts and "json" in choices:
                yield name


def of_engine() -> set[str]:
    """The commands of `rewindmq` that have --format json."""
    return set(with_json(rewindmq))


def of_spark() -> set[str]:
    """The commands of `rewindmq spark` that have --format json."""
    return set(with_json(spark_commands))
