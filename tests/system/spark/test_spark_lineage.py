"""Lineage: what jobs tell OpenLineage of themselves, sent by its own client (docs/behaviours/interfaces.md#lineage)."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InDirectory, InKafka
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay import session
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.lineage.events import (
    MOST_ASSERTIONS,
    OffsetsFacet,
    RunFacts,
    dataset_of,
    queue_at,
    run_event,
)
from rewindmq.spark_replay.lineage.settings import Parent, read_settings
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs" / "spark" / "lineage.schema.json").read_text())
PARENT = "0198c1f2-0000-7000-8000-000000000001"


def clear() -> None:
    """The client writes into the environment, too."""
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of the machine."""
    clear()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield
    clear()


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's file transport."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(path))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("told")
    history = Recorder(data, partitions=1)
    history.declare("orders")
    for number in range(5):
        history.publish("orders", b"%d" % number)
    history.log.commit_and_wait()
    history.purge("orders")
    history.close()
    return data


def sent(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def offsets(event: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of all inputs, by partition; each facet is held against the schema."""
    found: dict[str, dict[str, Any]] = {}
    for dataset in event["inputs"]:
        facet = dataset["inputFacets"].get("rewindmq_offsets")
        if facet is not None:
            schema = {"$ref": "#/$defs/RewindmqOffsetsInputDatasetFacet", "$defs": SCHEMA["$defs"]}
            jsonschema.Draft202012Validator(schema).validate(facet)
            found |= {each["partition"]: each for each in facet["partitions"]}
    return found


# -- a command is a run ---------------------------------------------------------------------------------------------


def test_a_command_starts_and_completes_with_what_it_read(
    spark: SparkSession, told: Path, tmp_path: Path, events: Path
) -> None:
    out = tmp_path / "history"
    assert cli.run(["history", "--data", str(told), "--queue", "orders", "--format", "parquet", "--out", str(out)]) == 0
    start, complete = sent(events)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"] == str(UUID(start["run"]["runId"]))
    for event in (start, complete):
        assert (event["job"]["namespace"], event["job"]["name"]) == ("rewindmq", "rewindmq.history")
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
        assert event["run"]["facets"]["processing_engine"]["version"] == spark.version
        assert "parent" not in event["run"]["facets"]
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("file", str(told))]
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [("file", str(out))]
    assert offsets(start) == {}
    [log] = EmbeddedLogReader(told).queues
    end = log.next_offset
    *_, last = log.read()
    assert offsets(complete) == {
        "queues-0": {
            "partition": "queues-0",
            "start": 0,
            "end": end,
            "chain": last.chain.hex(),
            "chain_offset": end,
        }
    }
    assert complete["inputs"][0]["inputFacets"]["rewindmq_offsets"]["queue"] == "orders"


def test_an_offset_within_a_block_has_the_chain_of_the_block_before(
    spark: SparkSession, busy: Path, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EmbeddedLogReader(busy).queues[0]
    before, block = next((a, b) for a, b in pairwise(log.read()) if len(b.records) > 1)
    within = block.first_offset + 1
    assert cli.run(["state-at", "--data", str(busy), "--offsets", json.dumps({"queues-0": within})]) == 0
    assert offsets(sent(events)[1]) == {
        "queues-0": {
            "partition": "queues-0",
            "start": 0,
            "end": within,
            "chain": before.chain.hex(),
            "chain_offset": block.first_offset,
        }
    }
    behind = block.first_offset + len(block.records)
    for end in (behind, behind - 1):
        at, chain = (behind, block.chain) if end == behind else (block.first_offset, before.chain)
        assert lineage.chain_at(InDirectory(busy), "queues-0", end) == {"chain": chain.hex(), "chain_offset": at}
    assert lineage.chain_at(InDirectory(busy), "queues-0", 0) == {}


def test_what_is_read_begins_at_a_snapshot(
    spark: SparkSession, busy: Path, tmp_path: Path, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    ends = {log.name: log.next_offset for log in EmbeddedLogReader(busy).queues}
    assert cli.run(["cut", "--data", str(busy), "--every", "200", "--out", str(own)]) == 0
    cut = sent(events)[1]
    assert {name: (each["start"], each["end"]) for name, each in offsets(cut).items()} == {
        name: (0, end) for name, end in ends.items()
    }
    assert [each["name"] for each in cut["outputs"]] == [str(own)]
    when = ["--offsets", '{"queues-1": 310}', "--queue", "rest"]
    assert cli.run(["state-at", "--data", str(busy), "--snapshots", str(own), *when]) == 0
    [read] = offsets(sent(events)[3]).values()
    assert (read["partition"], read["start"], read["end"]) == ("queues-1", 200, 310)
    assert cli.run(["verify", "--data", str(busy), "--snapshots", str(own)]) == 0
    verify = sent(events)[5]
    assert {name: each["end"] for name, each in offsets(verify).items()} == ends
    assertions = verify["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {(each["assertion"], each["success"]) for each in assertions} == {("snapshots", True), ("claims", True)}


def test_findings_are_assertions_and_an_audit_with_some_is_complete(
    spark: SparkSession, tmp_path: Path, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = Recorder(tmp_path / "data", partitions=1)
    history.declare("orders")
    claimed = history.claim(0, "0" * 64)
    history.close()
    page = tmp_path / "audit.html"
    assert cli.run(["audit", "--data", str(tmp_path / "data"), "--html", str(page)]) == 1
    complete = sent(events)[-1]
    assert complete["eventType"] == "COMPLETE"
    assert [each["name"] for each in complete["outputs"]] == [str(page)]
    assert set(offsets(complete)) == {"metadata-0", "queues-0"}
    told = complete["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {each["assertion"]: each["success"] for each in told}["chain"] is True
    [bad] = [each for each in told if not each["success"]]
    assert bad["assertion"] == "claims"
    assert bad["params"] == {"partition": "queues-0", "offset": claimed}
    assert "the broker claimed 000" in bad["actual"]


def test_a_failed_job_says_why_and_one_refused_before_spark_was_no_run(
    spark: SparkSession, told: Path, tmp_path: Path, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "corrupt"
    shutil.copytree(told, data)
    segment = next((data / "log" / "queues-0").glob("*.avro"))
    content = bytearray(segment.read_bytes())
    content[-40] ^= 255
    segment.write_bytes(bytes(content))
    assert cli.run(["biography", "--data", str(data), "--message", "nonsense"]) == 64
    assert not events.exists()
    assert cli.run(["biography", "--data", str(data), "--message", "queues-0:2"]) == 65
    start, fail = sent(events)
    assert [start["eventType"], fail["eventType"]] == ["START", "FAIL"]
    assert start["run"]["runId"] == fail["run"]["runId"]
    assert fail["run"]["facets"]["errorMessage"]["programmingLanguage"] == "PYTHON"
    assert fail["run"]["facets"]["errorMessage"]["message"] in capsys.readouterr().err.splitlines()[-1]


def test_functions_are_a_run_where_their_caller_says_so(spark: SparkSession, told: Path, events: Path) -> None:
    from rewindmq.spark_replay.history.history import history

    history(spark, str(told)).collect()
    assert not events.exists()
    runs = []

    def interrupted() -> None:
        with lineage.run("mine", str(told), spark) as run:
            runs.append(run)
            history(spark, str(told), {"endingOffsets": "3"}).collect()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    history(spark, str(told)).collect()
    start, abort = sent(events)
    assert (start["eventType"], abort["eventType"]) == ("START", "ABORT")
    assert [run.id for run in runs] == [start["run"]["runId"]] == [abort["run"]["runId"]]
    assert abort["job"]["name"] == "rewindmq.mine"
    assert offsets(abort)["queues-0"]["end"] == 3


# -- where events go --------------------------------------------------------------------------------------------------


# Its URL, and (path, Authorization, event) of each request.
Backend = tuple[str, list[tuple[str, str | None, dict[str, Any]]]]


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A server that takes lineage in."""
    taken: list[tuple[str, str | None, dict[str, Any]]] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    thread.join()
    server.server_close()


def test_over_http_with_a_parent(
    spark: SparkSession,
    told: Path,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, taken = backend
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "sesame")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "night")
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/daily.audit/{PARENT}")
    assert cli.run(["slo", "--data", str(told)]) == 0
    assert capsys.readouterr().err == ""
    assert [(path, key, event["eventType"]) for path, key, event in taken] == [
        ("/api/v1/lineage", "Bearer sesame", "START"),
        ("/api/v1/lineage", "Bearer sesame", "COMPLETE"),
    ]
    for _, _, event in taken:
        assert (event["job"]["namespace"], event["job"]["name"]) == ("night", "rewindmq.slo")
        parent = event["run"]["facets"]["parent"]
        assert parent["run"]["runId"] == PARENT
        assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow", "daily.audit")


def test_a_file_says_where(
    spark: SparkSession,
    told: Path,
    tmp_path: Path,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, taken = backend
    (tmp_path / "ol.yml").write_text(f"transport:\n  type: http\n  url: {url}\n  endpoint: here\n")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "ol.yml"))
    assert cli.run(["history", "--data", str(told)]) == 0
    assert [(path, event["eventType"]) for path, _, event in taken] == [("/here", "START"), ("/here", "COMPLETE")]


@pytest.mark.rare
def test_nothing_is_sent_by_default_and_the_client_is_not_even_imported(told: Path) -> None:
    program = (
        "import sys\nfrom rewindmq.spark_replay.__main__ import run\n"
        f"status = run(['state-at', '--data', {str(told)!r}])\n"
        "print(status, 'openlineage' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.split() == ["0", "False"]
    assert json.loads(done.stdout)[0]["queue"] == "orders"


def test_openlineage_can_be_disabled(
    spark: SparkSession, told: Path, events: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert cli.run(["history", "--data", str(told)]) == 0
    assert not events.exists()


@pytest.mark.rare
@pytest.mark.parametrize("submitted", [False, True], ids=["python", "spark-submit"])
def test_sparks_names_hold_and_its_console_is_stderr(told: Path, submitted: bool) -> None:
    conf = {
        "transport.type": "console",
        "namespace": "prod",
        "appName": "checks",
        "parentJobName": "daily",
        "parentRunId": PARENT,
        "job.tags": "env:prod;nightly",
        "run.tags": "by:ann:TEAM",
    }
    options = [text for name, value in conf.items() for text in ("--conf", f"spark.openlineage.{name}={value}")]
    program, environment = [sys.executable, "-m", "spark_replay"], {}
    if submitted:
        submit = str(Path(sys.executable).with_name("spark-submit"))
        program = [submit, "--master", "local[1]", *options, "spark_replay/__main__.py"]
        environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": ""}
    else:
        environment = {"PYSPARK_SUBMIT_ARGS": f"{' '.join(options)} pyspark-shell"}
    done = subprocess.run(
        [*program, "state-at", "--data", str(told)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["queue"] == "orders"
    lines = done.stderr.splitlines()
    told_of = [json.loads(line) for line in lines if line.startswith("{")]
    assert submitted or len(lines) == len(told_of)  # the rest is Spark's own log
    start, complete = told_of
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert (complete["job"]["namespace"], complete["job"]["name"]) == ("prod", "checks.state-at")
    parent = complete["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"], parent["run"]["runId"]) == ("prod", "daily", PARENT)
    tags = [(each["key"], each["value"], each["source"]) for each in complete["job"]["facets"]["tags"]["tags"]]
    assert tags == [("env", "prod", "CONFIG"), ("nightly", "true", "CONFIG")]
    tags = [(each["key"], each["value"], each["source"]) for each in complete["run"]["facets"]["tags"]["tags"]]
    assert ("by", "ann", "TEAM") in tags


@pytest.mark.parametrize("kind", ["file", "http", "composite"])
def test_what_cannot_be_sent_fails_no_job_and_is_one_line(
    spark: SparkSession,
    told: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    transports = {
        "file": {"type": "file", "log_file_path": str(tmp_path / "missing" / "events"), "append": True},
        "http": {"type": "http", "url": "http://127.0.0.1:9", "retry": {"total": 0}},
    }
    transport = transports.get(kind, {"type": "composite", "transports": [*transports.values()]})
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    assert cli.run(["state-at", "--data", str(told)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["queue"] == "orders"
    [line] = printed.err.splitlines()
    assert line.startswith("spark_replay: lineage is not sent: ")
    assert {"file": "missing", "http": "127.0.0.1", "composite": "missing"}[kind] in line


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"OPENLINEAGE__TRANSPORT__TYPE": "pigeon"}, "transport pigeon: "),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "http"}, "`url` key not passed"),
        ({"OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": "x"}, "transport.type is missing beside log_file_path"),
        ({"OPENLINEAGE_URL": "nowhere"}, "nowhere"),
        ({"OPENLINEAGE_CONFIG": "/no/such/file.yml"}, "/no/such/file.yml cannot be read"),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_PARENT_ID": "a/b/c"}, "'c' is no UUID"),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_PARENT_ID": "a"}, "is not namespace/job/run id"),
    ],
)
def test_nonsense_is_refused_before_spark_starts(
    told: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    line: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "session", lambda **_: pytest.fail("Spark was started"))
    assert cli.run(["state-at", "--data", str(told)]) == 64
    [printed] = capsys.readouterr().err.splitlines()
    assert line in printed


def test_a_file_that_is_no_yaml_is_refused(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yml").write_text("transport: [")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "bad.yml"))
    assert cli.run(["state-at", "--data", str(told)]) == 64
    [printed] = capsys.readouterr().err.splitlines()
    assert "bad.yml" in printed


def config_of(transport: object) -> Any:
    """Each kind of transport has one of its own."""
    return vars(transport)["config"]


def test_sparks_configuration_in_the_clients_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def conf(**names: str) -> dict[str, str]:
        return {f"spark.openlineage.{name.replace('__', '.')}": value for name, value in names.items()}

    http = read_settings(
        conf(
            transport__type="http",
            transport__url="http://127.0.0.1:9",
            transport__timeoutInMillis="1500",
            transport__auth__type="api_key",
            transport__auth__apiKey="42",
            transport__headers__x="1",
        )
    )
    assert http is not None
    config = config_of(http.client.transport)
    assert (config.url, config.timeout, config.custom_headers) == ("http://127.0.0.1:9", 1.5, {"x": "1"})
    assert config.auth.get_bearer() == "Bearer 42"
    file = read_settings(conf(transport__type="file", transport__location=str(tmp_path / "events")))
    assert file is not None
    config = config_of(file.client.transport)
    assert (config.log_file_path, config.append) == (str(tmp_path / "events"), True)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    alone = read_settings(conf(namespace="n", parentJobName="p", parentRunId=PARENT, parentJobNamespace="o"))
    assert alone is not None
    assert (alone.client.transport.kind, alone.namespace, alone.parent) == ("http", "n", Parent("o", "p", PARENT))
    assert read_settings(conf(disabled="true")) is None
    clear()
    by_default = read_settings(conf(namespace="n"))
    assert by_default is not None
    assert by_default.client.transport.kind == "console"
    for wrong in (
        conf(transport__type="pigeon"),
        conf(parentJobName="p"),
        conf(parentJobName="p", parentRunId="x"),
        conf(transport__type="http", transport__url="http://h", transport__timeoutInMillis="soon"),
        conf(transport__auth="x", transport__auth__type="api_key", transport__type="http"),
    ):
        with pytest.raises(BadRequest):
            read_settings(wrong)


# -- names, facets ---------------------------------------------------------------------------------------------------


def test_names_of_datasets_are_openlineages() -> None:
    assert dataset_of(InDirectory(Path("/var/lib/rewindmq")), "queues-0") == ("file", "/var/lib/rewindmq")
    topics = InKafka("one:9093,two:9092", "shop")
    assert dataset_of(topics, "queues-3") == ("kafka://one:9093", "shop.queues")
    for name in ("metadata-0", "shop.metadata"):
        assert dataset_of(topics, name) == ("kafka://one:9093", "shop.metadata")
    assert dataset_of(InKafka("one"), "queues-0") == ("kafka://one:9092", "rewindmq.queues")
    assert queue_at("http://ann:secret@mq:15672/", "/", "orders") == ("rewindmq://mq:15672", "//orders")


def test_of_many_findings_those_that_failed_come_first(events: Path) -> None:
    settings = read_settings({})
    assert settings is not None
    findings = [Finding("order", n >= 3, "queues-0", n, "orders", n, "late") for n in range(MOST_ASSERTIONS + 5)][::-1]
    about = RunFacts(
        "0198c1f2-0000-7000-8000-000000000002",
        "audit",
        location=InKafka("k:1"),
        queue=None,
        spark="4",
        partitions={},
        findings=findings,
        outputs=[],
    )
    from openlineage.client.event_v2 import RunState

    [dataset] = run_event(settings, RunState.COMPLETE, about).inputs or []
    assert dataset.inputFacets is not None
    made: Any = dataset.inputFacets["dataQualityAssertions"]
    assert [each.success for each in made.assertions[:4]] == [False, False, False, True]
    assert len(made.assertions) == MOST_ASSERTIONS + 1
    assert (made.assertions[-1].success, made.assertions[-1].actual) == (True, "5 more findings")


def test_the_schema_is_one_and_refuses_what_is_none() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert OffsetsFacet([])._schemaURL == f"{SCHEMA['$id']}#/$defs/RewindmqOffsetsInputDatasetFacet"
    wrong = {
        "inputs": [
            {
                "inputFacets": {
                    "rewindmq_offsets": {
                        "_producer": "urn:x",
                        "_schemaURL": OffsetsFacet([])._schemaURL,
                        "partitions": [
                            {"partition": "queues-0", "start": 0, "end": 1, "chain": "ab", "chain_offset": 1}
                        ],
                    }
                }
            }
        ]
    }
    with pytest.raises(jsonschema.ValidationError):
        offsets(wrong)


def test_what_was_read_is_kept_by_no_run(told: Path) -> None:
    lineage.read(pytest.fail("looked at") for _ in [0])
    with lineage.run("audit", str(told)) as run:
        lineage.read([OffsetRange("queues-0", 0, 1)])
    assert (run.id, run.ranges) == (None, {})
