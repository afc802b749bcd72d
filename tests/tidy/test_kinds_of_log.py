"""Only the composition root knows which kind of log a broker has. Other code asks for a capability."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The rooms that are one kind of log, and the files that choose between them. The command line says where a history is.
KNOW = ("engine/cluster/", "engine/embedded/", "engine/keeping/", "engine/log/", "engine/cli/")
CHOOSE = ("engine/process.py", "engine/config.py")
# `engine/rewind/queue_at.py` says where the history of a broker is, for a process that reads it.
OPEN = ("engine/rewind/queue_at.py",)
ASKS = re.compile(
    r"""\.kafka\s+is\b|\.kafka\s*[!=]=|(?:if|not|and|or|bool\()\s*[\w.]*\.kafka\b(?!\.)|[!=]=\s*["'](?:kafka|embedded)["']
    |isinstance\([^)]*\b(?:SoleWriter|ReadBack|ReadOnly|Cluster|Embedded|Kafka|InKafka|InDirectory)\w*(?:Keeper|Partition|Metadata|Log)""",
    re.VERBOSE,
)
NAMES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "engine").rglob("*.py"))
ENGINE = [name for name in NAMES if not name.startswith((*KNOW, *CHOOSE, *OPEN))]


def questions(text: str) -> list[str]:
    """The lines that ask which kind of log it is."""
    return [line.strip() for line in text.splitlines() if ASKS.search(line)]


def test_only_the_composition_root_asks_which_kind_of_log_it_is() -> None:
    assert "engine/broker/broker.py" in ENGINE
    found = {name: asked for name in ENGINE if (asked := questions((ROOT / name).read_text()))}
    assert not found, "ask the keeper or the history for what the log can do"


@pytest.mark.parametrize(
    "line",
    [
        "if config.kafka is None:",
        "url = None if broker.config.kafka is not None else archive",
        "in_kafka = bool(config.kafka)",
        "if self._config.kafka:",
        'if identity.log == "kafka":',
        "if isinstance(partition, ReadBackPartition):",
        "if isinstance(broker.keeper, EmbeddedKeeper):",
    ],
)
def test_a_question_is_found(line: str) -> None:
    assert questions(line) == [line]


NAMED = ("clients = KafkaClients(config.kafka, settings)", "from rewindmq.engine.log.kafka.clients import KafkaClients")


@pytest.mark.parametrize("line", NAMED)
def test_code_that_only_names_kafka_asks_nothing(line: str) -> None:
    assert not questions(line)
