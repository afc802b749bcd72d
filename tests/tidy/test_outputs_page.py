"""Each command that prints JSON has a schema, and docs/outputs/ is that of the code (B-63)."""

from jsonschema import Draft202012Validator

from rewindmq.engine.cli.outputs import OUTPUTS, VERIFIER
from rewindmq.schemas.json_schemas import JsonOutput
from rewindmq.spark_replay.commands.outputs import OUTPUTS as OF_SPARK
from tests.support import outputs, outputs_page

ALWAYS = {"spans", VERIFIER}  # print JSON without being asked, or are no command of `rewindmq`
TAKES = {"import_definitions"}  # its --format is that of the document that it reads


def test_b63_each_command_that_prints_json_has_a_schema() -> None:
    assert outputs.of_engine() - TAKES == OUTPUTS.keys() - ALWAYS
    assert outputs.of_spark() == OF_SPARK.keys()


def test_b63_the_files_are_those_of_the_code() -> None:
    outputs.require_types()
    stale = "run `python -m tests.support.outputs_page`"
    assert outputs_page.PAGE.read_text() == outputs_page.page(), stale
    written = {path: path.read_text() for path in outputs_page.FOLDER.glob("*.schema.json")}
    made = {outputs_page.file_of(each): outputs_page.schema_text(each) for each in outputs_page.every_output().values()}
    assert written == made, stale


def test_b63_every_schema_is_sound_and_has_a_name_of_its_own() -> None:
    outputs.require_types()
    every = [each for found in outputs_page.by_command().values() for each in found]
    by_name: dict[str, JsonOutput] = {}
    for each in every:
        assert by_name.setdefault(each.name, each) is each, f"two shapes have the name {each.name}"
        Draft202012Validator.check_schema(each.document())
    assert len({each.document()["$id"] for each in by_name.values()}) == len(by_name)
