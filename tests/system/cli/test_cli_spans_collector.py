"""`rewindmq spans --otlp` and a real OpenTelemetry Collector (B-35)."""

import re
from pathlib import Path

import pytest

from tests.support.collector.server import CollectorProcess, require_collector
from tests.support.commands import Cli
from tests.support.deadlines import until
from tests.support.running import RunningBroker
from tests.support.tracing import BEGINNING, PARENT, TRACE, called, printed, take, traced

pytestmark = pytest.mark.long


@pytest.mark.rare
def test_b35_a_collector_has_the_spans(cli: Cli, broker: RunningBroker, tmp_path: Path) -> None:
    require_collector()
    called(broker, "PUT", "queues/%2F/collected", durable=True)
    for number in range(600):  # more than one request
        traced(broker, "collected", f"m{number}")
    take(broker, "collected", "reject_requeue_false")
    called(broker, "DELETE", "queues/%2F/collected/contents")
    expected = {span["span_id"] for span in printed(cli, "collected")}
    assert len(expected) == 601
    with CollectorProcess(tmp_path) as collector:
        done = cli("spans", "collected", "--since", BEGINNING, "--otlp", collector.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"601 spans were sent to {collector.url}/v1/traces" in done.stdout

        def ids() -> set[str]:
            return set(re.findall(r"^\s+ID\s+: ([0-9a-f]{16})$", collector.printed(), re.MULTILINE))

        until(lambda: ids() == expected, "the Collector did not print each span once")
        text = collector.printed()
    assert f"Trace ID       : {TRACE}" in text
    assert f"Parent ID      : {PARENT}" in text
    assert "service.name: Str(rewindmq)" in text
    assert "Status code    : Error" in text
    assert "rewindmq.outcome: Str(rejected)" in text
