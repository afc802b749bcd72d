"""The examples in docs/operators.md run, and say what the text says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.running import RunningBroker

ROOT = Path(__file__).resolve().parent.parent.parent


def test_reading_streams_and_the_past(broker: RunningBroker) -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    section = text.split("## Reading streams and the past")[1].split("\n## ")[0]
    [example] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert example.count("localhost:5672") == 1
    example = example.replace("localhost:5672", f"{broker.host}:{broker.amqp_port}")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 b'1 degrees'", "2 b'2 degrees'",
        *(f"was there: b'order {number}'" for number in range(3)),
        *(f"was published: b'order {number}'" for number in range(3)),
    ]  # fmt: skip
