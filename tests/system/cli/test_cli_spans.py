"""`rewindmq spans`: messages with a traceparent become spans of OpenTelemetry (B-35)."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.rewind.trace_outcomes import WantedTraces, traced_outcomes, whole
from rewindmq.projections.traces.spans import Span, Spans
from tests.support.commands import Cli, require_failure
from tests.support.http_clients import publish_to
from tests.support.pika_clients import connect
from tests.support.pika_clients import take as consumed
from tests.support.ports import free_port
from tests.support.running import RunningBroker
from tests.support.tracing import BEGINNING, PARENT, TRACE, Receiver, called, printed, receiving, take, traced

pytestmark = pytest.mark.long


def test_b35_stays_and_deliveries_are_spans(cli: Cli, broker: RunningBroker) -> None:
    called(broker, "PUT", "queues/%2F/spanning", durable=True)
    traced(broker, "spanning", "one", tracestate="vendor=1")
    publish_to(broker, "spanning", "body", headers={"traceparent": "00-0-0-00"})
    take(broker, "spanning", "reject_requeue_true")
    take(broker, "spanning", "ack_requeue_false")
    traced(broker, "spanning", "two")
    done = cli("spans", "spanning", "--since", BEGINNING)
    assert (done.returncode, done.stderr) == (0, "messages that still wait, without a span of their stay: 1\n")
    first, second, stay = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in (first, second, stay)] == ["deliver spanning"] * 2 + ["stay spanning"]
    assert {each["trace_id"] for each in (first, second, stay)} == {TRACE}
    assert (stay["parent_id"], stay["state"], stay["flags"]) == (PARENT, "vendor=1", 1)
    assert first["parent_id"] == second["parent_id"] == stay["span_id"]
    assert len({each["span_id"] for each in (first, second, stay)} | {PARENT}) == 4
    assert stay["start_ms"] <= first["start_ms"] <= first["end_ms"] <= second["start_ms"] <= second["end_ms"]
    assert second["end_ms"] == stay["end_ms"]
    assert [each["attributes"]["rewindmq.outcome"] for each in (first, second, stay)] == [
        "requeued",
        "delivered",
        "delivered",
    ]
    attributes = stay["attributes"]
    assert attributes["messaging.system"] == "rabbitmq"
    assert attributes["messaging.destination.name"] == "spanning"
    assert attributes["messaging.message.id"] == "one"
    assert attributes["messaging.message.body.size"] == 4
    assert attributes["rewindmq.deliveries"] == 2
    assert stay["error"] is None
    assert printed(cli, "spanning") == [first, second, stay]  # the same, however often they are asked for
    assert printed(cli, "spanning", "--until", "1h") == []


def test_b35_each_delivery_to_a_consumer_is_a_span(cli: Cli, broker: RunningBroker) -> None:
    called(broker, "PUT", "queues/%2F/span-consumed", durable=True)
    traced(broker, "span-consumed", "consumed")
    for settles in (False, True):
        connection = connect(broker)
        channel = connection.channel()
        ((method, _, _),) = consumed(channel, "span-consumed", 1)
        if settles:
            channel.basic_ack(method.delivery_tag)
        connection.close()
    first, second, stay = printed(cli, "span-consumed")
    outcomes = [each["attributes"]["rewindmq.outcome"] for each in (first, second, stay)]
    assert outcomes == ["requeued", "acked", "acked"]
    assert [each["attributes"]["rewindmq.redelivered"] for each in (first, second)] == [False, True]


def test_b35_a_reader_of_a_queue_asks_about_its_own_queue(cli: Cli, broker: RunningBroker, tmp_path: Path) -> None:
    called(broker, "PUT", "queues/%2F/span-own", durable=True)
    traced(broker, "span-own", "own")
    called(broker, "DELETE", "queues/%2F/span-own/contents")
    called(broker, "PUT", "users/span-reader", password="secret", tags="management")
    called(broker, "PUT", "permissions/%2F/span-reader", configure="", write="", read="^span-own$")
    password = tmp_path / "password"
    password.write_text("secret")
    reader = ("--user", "span-reader", "--password-file", str(password))
    assert [span["name"] for span in printed(cli, "span-own", *reader)] == ["stay span-own"]
    for queue in ((), ("spanning",)):
        assert cli("spans", *queue, "--since", BEGINNING, *reader).returncode == 77


def test_b35_portions_of_any_size_make_the_same_spans(cli: Cli, broker: RunningBroker) -> None:
    called(broker, "PUT", "queues/%2F/span-portions", durable=True)
    for number in range(20):
        traced(broker, "span-portions", f"m{number}")
        publish_to(broker, "span-portions", "body")
    for ackmode in ("reject_requeue_true", "reject_requeue_false") * 5:
        take(broker, "span-portions", ackmode)
    called(broker, "DELETE", "queues/%2F/span-portions/contents")
    expected = printed(cli, "span-portions")
    assert len(expected) > 20
    history = InDirectory(broker.data)
    reader = history.open()
    for queue in ("span-portions", None):
        wanted = WantedTraces("/", queue, None, 0, None)
        for most, seconds in ((1, 5.0), (3, 0.0), (7, 5.0), (10_000, 0.0)):
            found, rows = Spans(), list[Span]()
            places = whole(reader, wanted)
            while places:
                portion = traced_outcomes(reader, history.snapshots, wanted, places, seconds, most)
                assert len(portion.rows) <= most
                assert portion.places != places
                places = portion.places
                for row in portion.rows:
                    if row.message_id is not None and row.time_ms is not None:
                        trace = portion.traces.get(row.offset) if row.value("outcome") == "published" else None
                        rows += found.add(row.fields(), row.time_ms, trace)
            ours = [asdict(span) for span in rows if span.name.endswith("span-portions")]
            assert ours == expected, (queue, most, seconds)


def test_b35_what_is_lost_is_an_error(cli: Cli, broker: RunningBroker) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "span-letters"}
    called(broker, "PUT", "queues/%2F/span-letters", durable=True)
    called(broker, "PUT", "queues/%2F/span-work", durable=True, arguments={**letters, "x-max-length": 1})
    traced(broker, "span-work", "dropped")
    traced(broker, "span-work", "rejected")
    take(broker, "span-work", "reject_requeue_false")
    called(broker, "DELETE", "queues/%2F/span-letters/contents")
    by_name = {
        (span["name"], span["attributes"]["messaging.message.id"]): span
        for span in printed(cli)
        if span["attributes"]["messaging.destination.name"] in ("span-work", "span-letters")
    }
    assert set(by_name) == {
        ("stay span-work", "dropped"),
        ("stay span-work", "rejected"),
        ("deliver span-work", "rejected"),
        ("stay span-letters", "dropped"),
        ("stay span-letters", "rejected"),
    }
    dropped, rejected = by_name["stay span-work", "dropped"], by_name["stay span-work", "rejected"]
    assert dropped["error"].startswith("maxlen: ")
    assert dropped["attributes"]["rewindmq.rule"] in dropped["error"]
    assert rejected["error"].startswith("rejected")
    assert by_name["deliver span-work", "rejected"]["error"] is not None
    letter = by_name["stay span-letters", "rejected"]
    assert (letter["error"], letter["attributes"]["rewindmq.outcome"]) == (None, "purged")
    assert letter["attributes"]["rewindmq.origin"].startswith("rejected span-work:")


@pytest.fixture
def ended(broker: RunningBroker) -> str:
    """A queue that a message with a trace has left."""
    called(broker, "PUT", "queues/%2F/span-ended", durable=True)
    called(broker, "DELETE", "queues/%2F/span-ended/contents")
    traced(broker, "span-ended", "ended")
    take(broker, "span-ended", "ack_requeue_false")
    return "span-ended"


def test_b35_a_busy_collector_is_asked_again(cli: Cli, ended: str) -> None:
    expected = printed(cli, ended)[-2:]
    with receiving((429, {"retry-after": "0"}, b""), (503, {"retry-after": "0"}, b"")) as receiver:
        options = ("--otlp", receiver.url, "--header", "x-key=a=b", "--since", BEGINNING)
        done = cli("spans", ended, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path, _, _ in receiver.requests] == ["/v1/traces"] * 3
    _, headers, request = receiver.requests[-1]
    assert (headers["x-key"], headers["content-type"]) == ("a=b", "application/x-protobuf")
    (resource,) = request.resource_spans
    spans = list(resource.scope_spans[0].spans)[-2:]
    assert [(span.span_id.hex(), span.parent_span_id.hex(), span.name) for span in spans] == [
        (span["span_id"], span["parent_id"], span["name"]) for span in expected
    ]
    assert [span.end_time_unix_nano for span in spans] == [span["end_ms"] * 1_000_000 for span in expected]


def test_b47_a_collector_that_starts_late_is_asked_again(cli: Cli, ended: str) -> None:
    port, made = free_port(), list[Receiver]()

    def start_late() -> None:
        time.sleep(2)
        made.append(Receiver(port=port))
        made[0].serve_forever()

    thread = Thread(target=start_late, daemon=True)
    thread.start()
    done = cli("spans", ended, "--otlp", f"http://127.0.0.1:{port}", "--since", BEGINNING)
    made[0].shutdown()
    made[0].server_close()
    thread.join()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(made[0].requests) == 1


def test_b35_a_partial_success_is_told(cli: Cli, ended: str) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = 1, "one is too old"
    with receiving((200, {}, answer.SerializeToString())) as receiver:
        done = cli("spans", ended, "--since", BEGINNING, "--otlp", receiver.url)
    require_failure(done, 65, "Error: the collector took ")
    assert "rejected 1: one is too old" in done.stderr


def test_b35_a_refusal_is_one_line(cli: Cli, ended: str) -> None:
    with receiving((400, {}, b"no")) as receiver:
        done = cli("spans", ended, "--since", BEGINNING, "--otlp", receiver.url)
    require_failure(done, 65, f"Error: the collector at {receiver.url}/v1/traces refuses the spans: 400")
    assert len(receiver.requests) == 1
    with receiving((503, {"retry-after": "3600"}, b"")) as receiver:
        done = cli("spans", ended, "--since", BEGINNING, "--otlp", receiver.url)
    require_failure(done, 69, f"Error: the collector at {receiver.url}/v1/traces is busy: 503")
    nowhere = f"http://127.0.0.1:{free_port()}"
    done = cli("spans", ended, "--since", BEGINNING, "--otlp", nowhere)
    require_failure(done, 69, f"Error: the collector at {nowhere}/v1/traces does not answer: ")


def test_b35_questions_that_make_no_sense(cli: Cli, broker: RunningBroker) -> None:
    require_failure(
        cli("spans", "--since", "1h", "--otlp", "localhost"), 64, "Error: --otlp is the address of a collector"
    )
    require_failure(cli("spans", "--since", "1h", "--header", "a=b"), 64, "Error: --header is for the collector")
    require_failure(cli("spans", "--since", "noon"), 64, "Error: 'noon' is not a time")
    url = f"{broker.http_url}/api/history/traces/%2F"
    for query in ({}, {"since": BEGINNING, "next": "queues-0"}):
        assert httpx2.get(url, params=query, auth=("guest", "guest"), trust_env=False).status_code == 400


def test_b35_a_broker_imports_no_exporter() -> None:
    code = "import sys, rewindmq.engine.cli.main, rewindmq.engine.embedded.start, rewindmq.engine.http.app\n"
    code += "print([m for m in sys.modules if 'opentelemetry' in m or m.endswith('.otlp')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
