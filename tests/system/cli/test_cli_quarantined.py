"""`rewindmq list_quarantined`, in every dress."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Purged
from rewindmq.schemas.single_object import HEADER
from rewindmq.schemas.values import BROKER
from tests.support.commands import Cli
from tests.support.forked import run
from tests.support.running import RunningBroker

REASON = "byte 10 of 11: the record ends within timestamp"


@pytest.fixture
def filled(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> Cli:
    """The command on a broker whose log has two records that make no sense."""
    (tmp_path / "data").mkdir()
    log = EmbeddedLog.open(tmp_path / "data", 1)
    encoder = Encoder()
    log.queues[0].append(1, encoder.encode(encoder.prefix(1, BROKER), Purged("/", "gone")))
    log.queues[0].append(1, HEADER + b"\xff")
    log.commit_and_wait()
    log.close()
    broker = start_broker(tmp_path / "data")

    def command(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return run(*arguments, stdin=stdin, REWINDMQ_URL=broker.http_url)

    return command


def test_listed_in_every_dress(filled: Cli) -> None:
    purged = "no queue 'gone' in vhost '/'"
    assert filled("list_quarantined").stdout == (
        "Listing quarantined records ...\npartition\toffset\tevent\treason\n"
        f"queues-0\t0\tPurged\t{purged}\nqueues-0\t1\t\t{REASON}\n"
    )
    assert filled("-s", "list_quarantined", "--count", "1", "offset", "topic").stdout == "1\t\n"
    assert filled("list_quarantined", "--partition", "queues-0", "--count", "0", "-q").stdout == ""
    assert json.loads(filled("list_quarantined", "--formatter", "json").stdout) == [
        {"partition": "queues-0", "offset": 0, "event": "Purged", "reason": purged},
        {"partition": "queues-0", "offset": 1, "event": "", "reason": REASON},
    ]
    boxes = filled("list_quarantined", "--formatter", "pretty_table", "-q", "partition", "offset").stdout
    assert boxes.splitlines()[1] == "│ partition │ offset │"


def test_wrong_questions(cli: Cli) -> None:
    wrong = cli("list_quarantined", "--partition", "queues-77")
    assert wrong.returncode == 65
    assert wrong.stderr == "Error: there is no partition queues-77; there are metadata-0, queues-0, queues-1\n"
    assert cli("list_quarantined", "colour").returncode == 64
    assert cli("list_quarantined", "--count", "-1").returncode == 64
    assert cli("list_quarantined", "-q").stdout == ""
