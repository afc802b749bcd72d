"""Spans from Spark are those of `rewindmq spans`, from a data directory and from Kafka (B-47)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InDirectory, InKafka, Location
from rewindmq.engine.rewind.trace_outcomes import WantedTraces, traced_outcomes, whole
from rewindmq.projections.traces.spans import Span, Spans
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Route
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.history.spans import export_spans
from tests.support.kafka.cluster import KafkaCluster
from tests.support.ports import free_port
from tests.support.spark.histories import ANN, START_MS, Recorder, random_history
from tests.support.spark.topics import Writer, make_topics
from tests.support.tracing import Receiver, receiving

pytestmark = pytest.mark.long

END = str(START_MS + 6_000)


class TracedRecorder(Recorder):
    """Every second message has a traceparent."""

    count = 0

    def publish(self, queue: str, body: bytes, expiration_ms: int | None = None, persistent: bool = True) -> int:
        self.count += 1
        parent = f"00-{self.count:032x}-{self.count:016x}-01"
        headers = tables.encode({"traceparent": parent} if self.count % 2 else {"other": 1}, "headers")
        said = {"headers": tables.with_length(headers), "delivery_mode": b"\x02", "message_id": b"\x01m"}
        route = Route("/", "", queue, (queue,))
        event = Published(
            route,
            join_by_name(said),
            expiration_ms=expiration_ms,
            persistent=persistent,
            body=body,
            body_size=len(body),
        )
        return self.append(self.partition(queue), ANN, event)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("traced")
    history = TracedRecorder(data)
    random_history(history, 11, 900)
    history.declare("events", {"x-queue-type": "stream"}, kind="stream")
    for number in range(4):
        history.publish("events", b"%d" % number)
    history.declare("kept")
    history.publish("kept", b"waits")
    history.publish("kept", b"waits")
    history.close()
    return data


def expected(data: Path, until_ms: int | None = None, queue: str | None = None) -> tuple[list[Span], int]:
    """The spans that the broker's way makes, and the number of stays without one."""
    history = InDirectory(data)
    reader, wanted = history.open(), WantedTraces("/", queue, None, 0, until_ms)
    found, spans, places = Spans(), list[Span](), whole(reader, wanted)
    while places:
        portion = traced_outcomes(reader, history.snapshots, wanted, places)
        for row in portion.rows:
            if row.message_id is not None and row.time_ms is not None:
                trace = portion.traces.get(row.offset) if row.value("outcome") == "published" else None
                spans += found.add(row.fields(), row.time_ms, trace)
        places = portion.places
    return spans, found.waiting


def got(receiver: Receiver) -> list[tuple[str, str, str, str, int, int, dict[str, str], str]]:
    return sorted(
        (
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano // 1_000_000,
            span.end_time_unix_nano // 1_000_000,
            {each.key: str(getattr(each.value, each.value.WhichOneof("value"))) for each in span.attributes},
            span.status.message,
        )
        for _, _, request in receiver.requests
        for resource in request.resource_spans
        for span in resource.scope_spans[0].spans
    )


def plain(spans: list[Span]) -> list[tuple[str, str, str, str, int, int, dict[str, str], str]]:
    return sorted(
        (
            each.trace_id,
            each.span_id,
            each.parent_id,
            each.name,
            each.start_ms,
            each.end_ms,
            {name: str(value) for name, value in each.attributes.items()},
            each.error or "",
        )
        for each in spans
    )


def check(spark: SparkSession, location: Location, data: Path) -> None:
    for until, queue in ((None, None), (END, None), (None, "short")):
        spans, waiting = expected(data, None if until is None else int(until), queue)
        with receiving() as receiver:
            [row] = export_spans(spark, location, receiver.url, until=until, queue=queue).collect()
        assert (row.sent, row.rejected, row.waiting) == (len(spans), 0, waiting)
        assert got(receiver) == plain(spans)
        assert spans


def test_b47_spans_of_a_data_directory(spark: SparkSession, traced: Path) -> None:
    check(spark, InDirectory(traced), traced)
    spans, waiting = expected(traced)
    assert waiting > 0
    assert any(each.error for each in spans)
    assert any(each.name.startswith("deliver") for each in spans)


def test_b47_spans_of_a_kafka(spark: SparkSession, traced: Path, kafka: KafkaCluster) -> None:
    place: InKafka = make_topics(kafka.bootstrap, "spanned", 2)
    Writer(place).copy(traced)
    check(spark, place, traced)


def test_b47_the_command_sends_and_says_what_is_wrong(
    spark: SparkSession, traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans, waiting = expected(traced)
    with receiving((503, {"retry-after": "0"}, b"")) as receiver:
        asked = ["spans", "--data", str(traced), "--otlp", receiver.url, "--header", "x-key=1"]
        assert cli.run(asked) == 0
    told = capsys.readouterr()
    assert f"{len(spans)} spans were sent to {receiver.url}" in told.out
    assert f"without a span of their stay: {waiting}" in told.err
    with receiving(*[(400, {}, b"")] * 8) as receiver:
        assert cli.run(["spans", "--data", str(traced), "--otlp", receiver.url]) == 65
    assert "refuses the spans: 400" in capsys.readouterr().err
    assert cli.run(["spans", "--data", str(traced), "--otlp", "localhost"]) == 64
    assert cli.run(["spans", "--data", str(traced), "--otlp", f"http://127.0.0.1:{free_port()}"]) == 69
    assert "does not answer" in capsys.readouterr().err
