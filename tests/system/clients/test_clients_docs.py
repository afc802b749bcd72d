"""The examples in docs/operators/ run, and print what the text says."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rewindmq.engine.cli import main
from tests.support.running import RunningBroker

ROOT = Path(__file__).resolve().parents[3]


def said_by_example(page: str, broker: RunningBroker) -> list[str]:
    """Return the lines that the example on this page prints."""
    text = (ROOT / "docs" / "operators" / page).read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert example.count("localhost:5672") == 1
    example = example.replace("localhost:5672", f"{broker.host}:{broker.amqp_port}")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_reading_streams_and_the_past(broker: RunningBroker) -> None:
    assert said_by_example("streams.md", broker) == [
        "1 b'1 degrees'",
        "2 b'2 degrees'",
        *(f"was there: b'order {number}'" for number in range(3)),
        *(f"was published: b'order {number}'" for number in range(3)),
    ]


def test_b15_erasing_a_persons_messages(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker(None, "--subject-header", "x-subject")
    assert said_by_example("erasure.md", broker) == ['b"I live at 12 St James\'s Square"']
    erase = ["erase_subject", "customer-4711", "--reason", "her letter of 22 November", "--url", broker.http_url]
    check = ["check_erasure", "customer-4711", "--data", str(broker.data)]
    assert [main.run(check), main.run(erase), main.run(check)] == [1, 0, 0]
    assert broker.stop() == 0


def test_b61_events_that_come_once(broker: RunningBroker) -> None:
    assert said_by_example("deduplication.md", broker) == [
        '/shop/berlin 4711 {"amount": 12.5}',
        '/shop/paris 4711 {"amount": 3}',
    ]
