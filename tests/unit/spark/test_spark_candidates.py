"""Refused before Spark starts: candidates by the broker's rules, messages that are none, a broker that is away."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay import session
from rewindmq.spark_replay.what_if.candidates import check, parse_candidate
from tests.support.ports import free_port
from tests.support.spark.histories import Recorder


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("told")
    history = Recorder(data, partitions=1)
    history.declare("orders")  # offset 0
    history.publish("orders", b"x")
    history.close()
    return data


def refused(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str]:
    """Exit status and the one line."""
    monkeypatch.setattr(session, "session", lambda **_: pytest.fail("Spark was started"))
    status = cli.run([*arguments, "--data", str(data)])
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    return status, line


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"definition": {"max-len": 600}}, '[{<<"max-len">>,600}] are not recognised policy settings'),
        ({"definition": {"max-length": "lots"}}, '<<"lots">> is not a valid maximum length'),
        ({"definition": {"overflow": "explode"}}, "is not a valid overflow value"),
        ({"definition": {"delayed-retry-type": "all"}, "semantics": "rabbitmq-3.13"}, "not recognised policy settings"),
        ({"semantics": "kafka"}, "unsupported semantics 'kafka'; there are rabbitmq-3.13, rabbitmq-4.3"),
        ({"semantics": ["rabbitmq-4.3"]}, "unsupported semantics"),
        ({"arguments": {"x-max-len": 3}}, "invalid arg 'x-max-len': no queue knows it"),
        ({"arguments": {"x-max-len": None}}, "invalid arg 'x-max-len': no queue knows it"),
        ({"arguments": {"x-max-length": "3"}}, "invalid arg 'x-max-length': \"expected integer, got longstr\""),
        ({"arguments": {"x-max-length": -1}}, "invalid arg 'x-max-length': {value_negative,-1}"),
        ({"arguments": {"x-expires": 0}}, "invalid arg 'x-expires': {value_zero,0}"),
        ({"arguments": {"x-overflow": "explode"}}, "invalid arg 'x-overflow': invalid_overflow"),
        ({"arguments": {"x-dead-letter-exchange": ["dead"]}}, 'x-dead-letter-exchange\': ["dead"] is no text'),
        ({"arguments": {"x-delivery-limit": "lots"}}, "invalid arg 'x-delivery-limit': expected integer, got longstr"),
        ({"arguments": {"x-delivery-limit": -1}, "semantics": "rabbitmq-3.13"}, "{value_negative,-1}"),
        ({"arguments": {"x-delayed-retry-min": 5}, "semantics": "rabbitmq-3.13"}, "no queue knows it"),
    ],
    ids=json.dumps,
)
def test_b04_a_candidate_that_a_broker_would_not_take(
    told: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], line: str
) -> None:
    text = json.dumps({"name": "x", "pattern": "^orders", **said})
    status, found = refused(told, capsys, monkeypatch, "what-if", "--candidate", text)
    assert (status, line in found, "candidate 'x': " in found) == (64, True, True), found


@pytest.mark.parametrize(
    "said",
    [
        {"definition": {}},  # no policy at all
        {"definition": {"max-length": 600, "overflow": "reject-publish", "dead-letter-exchange": "dead"}},
        {"definition": {"delivery-limit": -1}},  # of a queue of profile rabbitmq-4.3
        {"definition": {"delayed-retry-type": "all", "delayed-retry-min": 5}, "semantics": "rabbitmq-4.3"},
        {"arguments": {"x-max-length": None, "x-message-ttl": 5}},
        {"arguments": {"x-dead-letter-routing-key": "k"}},  # the exchange is in the queue's own declaration
        {"arguments": {"x-delivery-limit": -1}},
        {"arguments": {"x-delayed-retry-min": 5}},
    ],
    ids=json.dumps,
)
def test_b04_a_candidate_that_some_queue_can_be(said: dict[str, Any]) -> None:
    check([parse_candidate(json.dumps({"pattern": "q", **said}))], None, 1)


@pytest.mark.parametrize("message", ["queues-0:999999", "queues-0:0", "queues-7:1", "metadata:0"])
def test_b11_without_a_message_that_is_none(
    told: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    for command in (["what-if"], ["restore", "--queue", "orders", "--to", "aside"]):
        found = refused(told, capsys, monkeypatch, *command, "--without", f"message={message}")
        assert found == (64, f"spark_replay: no message {message} in the history")


def test_restore_asks_for_the_broker_before_spark(
    told: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for which in (["--where", "outcome = 'expired'"], ["--without", "user=eve", "--queue", "orders", "--to", "aside"]):
        status, line = refused(told, capsys, monkeypatch, "restore", *which, "--url", away)
        assert (status, "Connection refused" in line) == (69, True)
    status, line = refused(told, capsys, monkeypatch, "restore", "--where", "true", "--url", "http://127.0.0.1:port")
    assert (status, "Invalid port" in line) == (69, True)


def test_b06_diff_from_a_time_after_now(
    told: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ([], ["--to", "2998-01-01T00:00:00Z"]):
        status, line = refused(told, capsys, monkeypatch, "diff", "--from", "2997-01-01T00:00:00Z", *more)
        assert (status, "lies in the future" in line) == (65, True)
