"""docs/outputs/: the JSON schemas of what commands print with `--format json`, and the page that lists them.

python -m tests.support.outputs_page      writes them anew
"""

import json
from pathlib import Path

from rewindmq.engine.cli import outputs as engine_outputs
from rewindmq.engine.cli.outputs import VERIFIER
from rewindmq.schemas.json_schemas import LINES, LIST, JsonOutput
from rewindmq.spark_replay.commands import outputs as spark_outputs
from tests.support.running import ROOT

FOLDER = ROOT / "docs" / "outputs"
PAGE = FOLDER / "README.md"
HEAD = """\
# JSON that commands print

    rewindmq history orders --format json | head -1 > line.json
    check-jsonschema --schemafile docs/outputs/outcome.schema.json line.json      # pip install check-jsonschema

Each command that has `--format json` prints values of one of the shapes below. A shape has a JSON schema (2020-12), and
the schema's `$id` is `urn:rewindmq:output:SHAPE:1`. If a command prints an object a line, the schema is about one line.
Otherwise the schema is about the whole output.

Take the fields that you know. A later version may add fields, so no schema forbids others. If a field goes, or gets
another meaning, the last number of the `$id` rises, and the changelog says so.

Not here:

- what `prove` prints: [proof.schema.json](../proof.schema.json)
- answers of the HTTP API: `/api/openapi.json`
  ([the reference](../operators/http-api.md#reference))
- listings with `--formatter json`, where you choose the columns: they are rabbitmqctl's
  ([commands](../operators/commands.md))
- the columns of Spark's tables in Parquet and Delta: [columns](../spark/columns.md)

This page and the schemas are made of the code: `python -m tests.support.outputs_page`.

"""
FORMS = {LINES: "an object a line", LIST: "an array"}


def by_command() -> dict[str, tuple[JsonOutput, ...]]:
    """The outputs of all commands, by what a person types."""
    ours = {name if name == VERIFIER else f"rewindmq {name}": of for name, of in engine_outputs.OUTPUTS.items()}
    return ours | {f"rewindmq spark {name}": of for name, of in spark_outputs.OUTPUTS.items()}


def every_output() -> dict[str, JsonOutput]:
    """The outputs by name."""
    return {each.name: each for outputs in by_command().values() for each in outputs}


def file_of(output: JsonOutput) -> Path:
    """The file of a schema."""
    return FOLDER / f"{output.name}.schema.json"


def schema_text(output: JsonOutput) -> str:
    """A schema as its file has it."""
    return json.dumps(output.document(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The page that lists the schemas."""
    lines = ["| command | options | prints | schema |", "| --- | --- | --- | --- |"]
    for command, outputs in by_command().items():
        for each in outputs:
            options = f"`{each.when}`" if each.when else ""
            link = f"[{each.name}]({file_of(each).name}): {each.title[0].lower()}{each.title[1:]}"
            lines.append(f"| `{command}` | {options} | {FORMS.get(each.form, 'an object')} | {link} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.schema.json"):
        old.unlink()
    for each in every_output().values():
        file_of(each).write_text(schema_text(each))
    PAGE.write_text(page())
