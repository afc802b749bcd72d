"""B-74, B-75. The schemas in a real registry, and copies of the topics that Kafka's consoles read."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema, released_in_order
from rewindmq.schemas.service_records import SharedDecoder
from tests.support.deadlines import SECONDS, until
from tests.support.forked import run
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import confirming
from tests.support.registry.server import PASSWORD, TOKEN, USER, RegistryServer
from tests.support.running import ROOT, start_process

pytestmark = pytest.mark.long

PREFIX = "consoles"
LARGE = b"large" * 600_000  # librdkafka's own limit is a third of it


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as found:
        found.put("/config", {"compatibility": "BACKWARD_TRANSITIVE"})
        yield found


def registered(*options: str) -> tuple[int, str, str]:
    done = run("register_schemas", *options)
    return done.returncode, done.stdout, done.stderr


def test_b74_every_schema_is_registered_once(registry: RegistryServer) -> None:
    """In order, under the registry's strictest rule of compatibility; a second time nothing changes."""
    code, first, said = registered("--registry", registry.url, "--kafka-prefix", "shop")
    assert (code, said) == (0, "")
    lines = [line.split("\t") for line in first.splitlines()]
    order = released_in_order()
    assert order[-1] == envelope_fingerprint()
    subjects = ("shop.metadata-value", "shop.queues-value")
    assert [line[:2] for line in lines] == [[subject, each] for subject in subjects for each in order]
    for subject, _, number in (lines[-1], lines[len(order) - 1]):
        assert json.loads(registry.get(f"/schemas/ids/{number}")["schema"]) == envelope_schema()
        assert registry.get(f"/subjects/{subject}/versions") == [*range(1, len(order) + 1)]
    assert registered("--registry", registry.url, "--kafka-prefix", "shop") == (0, first, "")
    assert registry.get("/subjects/shop.queues-value/versions") == [*range(1, len(order) + 1)]


def test_b74_a_subject_of_something_else_is_left_alone(registry: RegistryServer, tmp_path: Path) -> None:
    other = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    registry.post("/subjects/taken.metadata-value/versions", {"schema": json.dumps(other)})
    code, shown, said = registered("--registry", registry.url, "--kafka-prefix", "taken")
    assert (code, shown, said.count("\n")) == (65, "", 1)
    assert "subject taken.metadata-value has a schema of another program" in said
    assert registry.get("/subjects/taken.metadata-value/versions") == [1]


def test_b74_a_registry_that_wants_a_login(registry: RegistryServer, tmp_path: Path) -> None:
    registry.guard()
    url = ("--registry", registry.guarded_url)
    password, token, wrong = (tmp_path / name for name in ("password", "token", "wrong"))
    password.write_text(PASSWORD + "\n")
    token.write_text(TOKEN + "\n")
    wrong.write_text("wrong\n")
    login = ("--registry-user", USER, "--registry-password-file")
    assert registered(*url, *login, str(password))[0] == 0
    assert registered(*url, "--registry-token-file", str(token))[0] == 0
    for options in ((), (*login, str(wrong)), ("--registry-token-file", str(wrong))):
        code, shown, said = registered(*url, *options)
        assert (code, shown) == (77, "")
        assert "refuses the login or a right: HTTP 401" in said


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--registry", "http://127.0.0.1:1"), 69, "the schema registry at 127.0.0.1:1 does not answer"),
        (("--registry", "{root}/elsewhere"), 65, "is not a schema registry: it has no /subjects"),
        (("--registry", "registry:8081"), 64, "give --registry http://HOST:PORT"),
        (("--registry", "http://a:b@registry"), 64, "a password does not belong in an address"),
        (("--registry", "{root}", "--registry-user", "a"), 64, "go together"),
        (("--registry", "{root}", "--registry-token-file", "/nowhere"), 78, "/nowhere: No such file"),
    ],
)
def test_b74_what_prevents_it_is_one_line(
    registry: RegistryServer, options: tuple[str, ...], code: int, said: str
) -> None:
    done = registered(*(each.format(root=registry.url) for each in options))
    assert (done[0], done[1], done[2].count("\n")) == (code, "", 1)
    assert said in done[2]


class Copier:
    """The command, running."""

    def __init__(self, home: Path, kafka: KafkaCluster, registry: RegistryServer) -> None:
        self.log = home / "copier.log"
        command = [sys.executable, "-m", "rewindmq", "copy_for_consoles", "--kafka", kafka.bootstrap]
        command += ["--kafka-prefix", PREFIX, "--registry", registry.url]
        with self.log.open("ab") as log:
            self.process = start_process(command, cwd=ROOT, stderr=log)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        try:
            return int(self.process.wait(SECONDS))
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.log.read_text()) from None


def records_of(kafka: KafkaCluster, topic: str) -> list[Message]:
    """All records of a topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        known = consumer.list_topics(timeout=SECONDS).topics.get(topic)
        found: list[Message] = []
        for number in sorted(known.partitions) if known is not None else ():
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), SECONDS)
            consumer.assign([TopicPartition(topic, number, 0)])
            found += consumer.consume(end, SECONDS) if end else []
        return found
    finally:
        consumer.close()


def has_body(kafka: KafkaCluster, topic: str, body: bytes) -> bool:
    """Return True if a record of the topic ends with this body."""
    return any((each.value() or b"").endswith(body) for each in records_of(kafka, topic))


@pytest.mark.rare
def test_b75_a_copy_that_consoles_read(kafka: KafkaCluster, registry: RegistryServer, tmp_path: Path) -> None:
    """As Confluent's deserializer does it: the id, the schema from the registry, the record. Kills repeat nothing."""
    queues, copied = f"{PREFIX}.queues", f"{PREFIX}.queues.console"
    with Nodes(tmp_path, kafka, PREFIX) as nodes, confirming(nodes.start("north")) as channel:
        channel.queue_declare("orders", durable=True)
        copier = Copier(tmp_path, kafka, registry)
        for number in range(3):
            channel.basic_publish("", "orders", b"order %d" % number)
            until(partial(has_body, kafka, copied, b"order %d" % number), "nothing is copied")
            copier.kill()
            copier = Copier(tmp_path, kafka, registry)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(queues, b"no event", partition=0)
        assert producer.flush(SECONDS) == 0
        channel.basic_publish("", "orders", LARGE)
    ours = [each for each in records_of(kafka, queues) if each.value() != b"no event"]
    until(lambda: len(records_of(kafka, copied)) >= len(ours), "not all is copied")
    assert copier.stop() == 0, copier.log.read_text()
    assert "is not an event, and is not copied" in copier.log.read_text()
    bodies = []
    for source, copy in zip(ours, records_of(kafka, copied), strict=True):
        assert (copy.partition(), copy.key(), copy.timestamp()[1]) == (
            source.partition(),
            source.key(),
            source.timestamp()[1],
        )
        assert copy.headers() == [("rewindmq-offset", str(source.offset()).encode())]
        value = copy.value()
        assert value is not None
        assert value[:1] == b"\0"
        schema = json.loads(registry.get(f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")["schema"])
        rest = io.BytesIO(value[5:])
        read: Any = fastavro.schemaless_reader(rest, schema, None, return_record_name=True)
        assert rest.read() == b""
        _, actor, event = SharedDecoder().decode(source.value() or b"")
        name, fields = read["event"]
        assert (name, read["actor"]["user"]) == (f"rewindmq.history.{type(event).__name__}", actor.user)
        if name.endswith("Published"):
            bodies.append(fields["body"])
    assert bodies == [b"order 0", b"order 1", b"order 2", LARGE]
    metadata = len(records_of(kafka, f"{PREFIX}.metadata"))
    assert len(records_of(kafka, f"{PREFIX}.metadata.console")) == metadata
