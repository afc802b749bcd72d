"""B-73. The next version of the product goes back and forth with this one on the same files, until it is finalized."""

import re
from pathlib import Path

import pika
import pytest

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.moments import now
from tests.support.next_version import NEXT, NextVersion, finalize_under_load
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

OPTIONS = ("--subject-header", "subject")
QUEUES = ("orders", "letters", "brief")
SECRET = pika.BasicProperties(delivery_mode=2, headers={"subject": "ann"})
PLAIN = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)
MANY = 11_000  # events, after which a partition has a waypoint


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> NextVersion:
    return NextVersion.made(tmp_path_factory.mktemp("next") / "source")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def declare(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("all", "fanout", durable=True)
        channel.queue_declare("letters", durable=True, arguments={"x-queue-type": "quorum"})
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters", "x-max-length": 100}
        channel.queue_declare("orders", durable=True, arguments=arguments)
        channel.queue_declare("brief", durable=True, arguments={"x-expires": 3_600_000})
        for queue in ("orders", "brief"):
            channel.queue_bind(queue, "all")


class Story:
    """The clients of one history, over all lives of its broker. `expected`: published, and not taken yet."""

    def __init__(self) -> None:
        self.expected: list[bytes] = []
        self.published = 0

    def live(self, broker: RunningBroker, events: int = 100) -> None:
        """Publish messages, plain and encrypted, to two queues at once; take most, and look at them. Purge."""
        with connect(broker) as connection:
            channel = connection.channel()
            for _ in range(events):
                channel.basic_publish("", "brief", b"x", TRANSIENT)
            channel.confirm_delivery()
            for _ in range(30):
                body = b"message %d" % self.published
                channel.basic_publish("all", "", body, SECRET if self.published % 3 == 0 else PLAIN, mandatory=True)
                self.expected.append(body)
                self.published += 1
            for _ in range(20):
                method, _, body = channel.basic_get("orders", auto_ack=True)
                assert method is not None
                assert body == self.expected.pop(0)
            assert channel.queue_declare("orders", passive=True).method.message_count == len(self.expected)
            assert channel.queue_purge("brief").method.message_count >= events


def errors_of(broker: RunningBroker) -> str:
    """The lines of a broker's log, which say nothing of a state that could not be read."""
    said = "".join(broker.errors)
    for word in ("Traceback", "passed over", "folded anew", "no released schema", "skipped", "cannot be read"):
        assert word not in said, said
    return said


def stopped(broker: RunningBroker) -> str:
    assert broker.stop() == 0
    return errors_of(broker)


def schemas_in(data: Path) -> dict[str, int]:
    """The number of segments under each schema."""
    found: dict[str, int] = {}
    for directory in sorted((data / "log").glob("*-*/")):
        for segment in directory.glob("*.avro"):
            fields = re.search(rb'"name":"cipher"', segment.read_bytes())
            name = "next" if fields else "this"
            found[name] = found.get(name, 0) + 1
    return found


def verified(data: Path) -> None:
    """This program's `verify` compares log, state and snapshots."""
    done = run("verify", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr


def verified_by(program: NextVersion, data: Path) -> None:
    done = program.run("-m", "rewindmq", "verify", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr


def archived(program: NextVersion | None, data: Path) -> None:
    """Archive all, remove it here, and prove the whole archive: segments, snapshots and bases of both programs."""
    to = str(data.parent / "archive")
    archive = ("archive", "--data", str(data), "--to", to, "--roll", "--keep-local", "1kB")
    for arguments in (archive, ("archive_verify", "--archive", to)):
        done = program.run("-m", "rewindmq", *arguments) if program else run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def refused(data: Path) -> None:
    """This program refuses the history, in one line."""
    with pytest.raises(AssertionError, match="ended with 78") as ended:
        RunningBroker(data, *OPTIONS)
    said = str(ended.value)
    assert len(said.splitlines()) == 1, said
    assert "newer" in said


def folded_on_top(said: str) -> int:
    """The events that a start folded on top of the stored state."""
    return sum(map(int, re.findall(r"(\d+) events folded on top", said)))


@pytest.mark.long
def test_b73_the_way_back_is_open_until_the_upgrade_is_finalized(following: NextVersion, data: Path) -> None:
    story = Story()
    broker = RunningBroker(data, *OPTIONS)
    declare(broker)
    story.live(broker)
    stopped(broker)
    for kind in (following.broker, RunningBroker, following.broker):
        broker = kind(data, *OPTIONS)
        story.live(broker)
        overview = api_client(broker).get("/overview").json()
        known = NEXT if kind is following.broker else MACHINE_VERSION
        assert (overview["machine_version"], overview["known_machine_version"]) == (MACHINE_VERSION, known)
        said = stopped(broker)
        assert folded_on_top(said) == 0, said  # the state of the other program's clean stop is used
        assert ("run `rewindmq finalize_upgrade`" in said) == (kind is following.broker)
        assert set(schemas_in(data)) == {"this"}
        archived(following if kind is following.broker else None, data)
        verified(data)
        verified_by(following, data)
    assert list((data / "bases").rglob("*.base"))
    broker = following.broker(data, *OPTIONS)  # and what a kill leaves is read, too
    story.live(broker, MANY)
    broker.kill()
    errors_of(broker)
    assert list((data / "snapshots").rglob("*.waypoint"))
    broker = RunningBroker(data, *OPTIONS)
    story.live(broker)
    found = api_client(broker).get("/queues/%2F/orders/at", params={"time": now()}).json()["message_details"]
    assert [each["payload"].encode() for each in found] == story.expected
    stopped(broker)
    broker = following.broker(data, *OPTIONS)
    assert (
        "run `rewindmq finalize_upgrade`" in following.run("-m", "rewindmq", "--url", broker.http_url, "status").stdout
    )
    finalize_under_load(following, broker, broker)
    story.live(broker)
    stopped(broker)
    assert set(schemas_in(data)) == {"this", "next"}
    refused(data)
    broker = following.broker(data, *OPTIONS)
    story.live(broker)
    said = stopped(broker)
    assert folded_on_top(said) == 0, said
    assert "finalize_upgrade" not in said
    verified_by(following, data)
    refused(data)


def test_b73_what_needs_the_version_is_refused_until_then(following: NextVersion, data: Path) -> None:
    broker = RunningBroker(data, *OPTIONS)
    declare(broker)
    stopped(broker)
    broker = following.broker(data, *OPTIONS)
    with api_client(broker) as client:
        no = client.delete("/queues/%2F/orders/contents", params={"note": "a bad batch"})
        assert no.status_code == 400
        assert no.json()["reason"] == (
            f"the note of a purge needs machine version {NEXT}, and the history follows"
            f" {MACHINE_VERSION}: it can be used after `rewindmq finalize_upgrade`"
        )
        assert client.post("/upgrade/finalize").json() == {"before": MACHINE_VERSION, "after": NEXT}
        yes = client.delete("/queues/%2F/orders/contents", params={"note": "a bad batch"})
        assert yes.status_code == 204, yes.text
    stopped(broker)
    events = following.run("-m", "rewindmq", "events", "--data", str(data))
    assert "a bad batch" in events.stdout, events.stderr


UPGRADED_METADATA = """
import sys
from pathlib import Path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.schemas.events import MachineUpgraded
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import Actor

log = EmbeddedLog.open(Path(sys.argv[1]), None)
time_ms = max(block.max_timestamp_ms for block in log.metadata.read())
encoder = encoder_under(log.metadata.schema)
record = encoder.encode(encoder.prefix(time_ms, Actor("guest", 1)), MachineUpgraded(MACHINE_VERSION))
log.metadata.append(time_ms, record)
log.close()
"""


@pytest.mark.long
def test_b73_a_crash_between_the_logs_is_finished_by_the_next_start(following: NextVersion, data: Path) -> None:
    """The metadata log decides. A crash leaves the partitions as they were."""
    story = Story()
    broker = RunningBroker(data, *OPTIONS)
    declare(broker)
    story.live(broker)
    broker.kill()
    done = following.run("-c", UPGRADED_METADATA, str(data))
    assert done.returncode == 0, done.stderr
    assert set(schemas_in(data)) == {"this"}
    refused(data)
    for command in (("trim", "--before", "1d"), ("rewind", "orders", "--at", "mark:none"), ("verify",)):
        refusal = run(*command, "--data", str(data))
        assert refusal.returncode == 65, refusal
        assert len(refusal.stderr.splitlines()) == 1, refusal.stderr
        assert f"machine version {NEXT}" in refusal.stderr
    broker = following.broker(data, *OPTIONS)
    with api_client(broker) as client:
        assert client.get("/overview").json()["machine_version"] == NEXT
        assert client.delete("/queues/%2F/brief/contents", params={"note": "at once"}).status_code == 204
    story.live(broker)
    stopped(broker)
    verified_by(following, data)
    events = following.run("-m", "rewindmq", "events", "--data", str(data)).stdout
    assert events.count(f"MachineUpgraded machine_version={NEXT}\n") == 3, "once in each log"


def test_b73_only_an_administrator_finalizes(following: NextVersion, data: Path) -> None:
    broker = RunningBroker(data)
    with api_client(broker) as client:
        assert client.put("/users/eve", json={"password": "eve", "tags": "monitoring"}).status_code == 201
        assert client.post("/upgrade/finalize", auth=("eve", "eve")).status_code == 401
        assert client.post("/upgrade/finalize").json() == {"before": MACHINE_VERSION, "after": MACHINE_VERSION}
        assert client.get("/upgrade/finalize").status_code == 405
    stopped(broker)


def test_b73_a_new_history_is_final_from_its_first_event(following: NextVersion, data: Path) -> None:
    broker = following.broker(data, *OPTIONS)
    declare(broker)
    with api_client(broker) as client:
        assert client.get("/overview").json()["machine_version"] == NEXT
        assert client.delete("/queues/%2F/orders/contents", params={"note": "why not"}).status_code == 204
    assert "finalize_upgrade" not in stopped(broker)
    assert set(schemas_in(data)) == {"next"}
    refused(data)
