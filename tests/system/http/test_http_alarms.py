"""The alarms of memory and disk as operators see them: limits set while it runs, every listing, metric and command."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.metrics import metrics, value
from tests.support.running import RunningBroker

NODE = "rewindmq@localhost"


@pytest.fixture
def limited(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(tmp_path / "data", "--vm-memory-high-watermark", "0.5", "--disk-free-limit", "1MB")


@pytest.fixture
def ask(limited: RunningBroker) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{limited.http_url}/api", auth=("guest", "guest"), trust_env=False) as client:
        yield client


def alarmed(limited: RunningBroker, ask: httpx2.Client) -> tuple[list[str], tuple[bool, bool], tuple[float, float]]:
    """By the health check, by the node's listing, and by the metrics: memory, disk."""
    node = ask.get(f"/nodes/{NODE}").json()
    found = metrics(limited)
    return (
        [each["resource"] for each in ask.get("/health/checks/alarms").json().get("alarms", [])],
        (node["mem_alarm"], node["disk_free_alarm"]),
        (value(found, "alarms_memory_used_watermark"), value(found, "alarms_free_disk_space_watermark")),
    )


def test_memory_breakdown_is_by_kind(limited: RunningBroker) -> None:
    done = run("memory_breakdown", REWINDMQ_URL=limited.http_url)
    assert "undurable: 0.0000 gb" in done.stdout
    assert "connection: " in done.stdout


def test_limits_are_listed(limited: RunningBroker, ask: httpx2.Client) -> None:
    node, found = ask.get(f"/nodes/{NODE}").json(), metrics(limited)
    assert node["disk_free_limit"] == value(found, "disk_space_available_limit_bytes") == 1_000_000
    assert node["mem_limit"] == value(found, "resident_memory_limit_bytes") > 100_000_000
    assert value(found, "process_resident_memory_bytes") > 10_000_000
    assert alarmed(limited, ask) == ([], (False, False), (0, 0))
    memory = ask.get(f"/nodes/{NODE}/memory").json()["memory"]
    assert memory["total"]["rss"] > memory["total"]["held"] >= 0
    held = {name for name, value in memory.items() if isinstance(value, int)}
    assert held >= {"body", "output", "unacked", "http", "past"}
    (family,) = (each for name, each in found.items() if name == "rewindmq_memory_held_bytes")
    assert {sample.labels["kind"] for sample in family.samples} == held


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_an_alarm_is_told_everywhere_and_ends(limited: RunningBroker, ask: httpx2.Client, resource: str) -> None:
    command = {"memory": "set_vm_memory_high_watermark", "disk": "set_disk_free_limit"}[resource]
    high = {"memory": ("absolute", "1MB"), "disk": ("1000TB",)}[resource]

    def rewindmq(*arguments: str) -> str:
        done = run(*arguments, REWINDMQ_URL=limited.http_url)
        return done.stdout + done.stderr

    told: list[str] = []
    parameters = pika.URLParameters(limited.amqp_url + "?heartbeat=0")
    with pika.BlockingConnection(parameters) as publisher, pika.BlockingConnection(parameters) as consumer:
        publisher.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        publishing, consuming = publisher.channel(), consumer.channel()
        publishing.queue_declare("q")
        publishing.basic_publish("", "q", b"1")
        assert " on rewindmq@localhost to " in rewindmq(command, *high)
        assert alarmed(limited, ask) == (
            [resource],
            (resource == "memory", resource == "disk"),
            (resource == "memory", resource == "disk"),
        )
        assert {each["state"] for each in ask.get("/connections").json()} == {"blocking"}
        publishing.basic_publish("", "q", b"2")
        publishing.basic_publish("", "q", b"3")
        until(lambda: publisher.process_data_events(0) or bool(told), "connection.blocked never came")
        assert told == [f"low on {resource}"]
        assert rewindmq("list_connections", "-q", "state").split()[1:] == ["blocked", "blocking"]
        assert consuming.basic_get("q", auto_ack=False)[2] == b"1"
        consuming.basic_ack(1)
        assert ask.get("/overview").json()["publishing_blocked"] == f"low on {resource}"
        (alarm,) = ask.get("/overview").json()["alarms"]
        what = {"memory": "Memory", "disk": "Free disk space"}[resource]
        line = f"{what} alarm on node {NODE}: low on {resource}: "
        assert (alarm["node"], alarm["resource"]) == (NODE, resource)
        for listing in ("status", "alarms", "check_alarms", "check_local_alarms"):
            assert line in rewindmq(listing), listing
        refused = ask.post(
            "/exchanges/%2F/amq.default/publish",
            json={
                "properties": {},
                "routing_key": "q",
                "payload": "x",
                "payload_encoding": "string",
            },
        )
        assert (refused.status_code, refused.json()["reason"]) == (400, f"publishing is blocked: low on {resource}")
        assert run(command, {"memory": "0.9", "disk": "1"}[resource], REWINDMQ_URL=limited.http_url).returncode == 0
        until(lambda: publisher.process_data_events(0) or len(told) == 2, "connection.unblocked never came")
        publishing.confirm_delivery()
        publishing.basic_publish("", "q", b"4")
        until(lambda: publishing.queue_declare("q", passive=True).method.message_count == 3, "publishing stands still")
        assert alarmed(limited, ask) == ([], (False, False), (0, 0))


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("vm_memory_high_watermark", "1.5"),
        ("vm_memory_high_watermark", "a lot"),
        ("disk_free_limit", "0.5"),
        ("disk_free_limit", "mem_relative:x"),
    ],
)
def test_limits_that_make_no_sense(limited: RunningBroker, ask: httpx2.Client, limit: str, text: str) -> None:
    refused = ask.put(f"/nodes/{NODE}/limits/{limit}", json={"value": text})
    assert (refused.status_code, text.removeprefix("mem_relative:") in refused.json()["reason"]) == (400, True)
    done = run(f"set_{limit}", text, REWINDMQ_URL=limited.http_url)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert ask.put(f"/nodes/{NODE}/limits/x", json={"value": "1"}).status_code == 404
    assert ask.put(f"/nodes/nobody/limits/{limit}", json={"value": "1"}).status_code == 404


@pytest.mark.parametrize("text", ["40", "7", "2GB"])
def test_a_watermark_of_memory_is_a_fraction_unless_it_is_absolute(limited: RunningBroker, text: str) -> None:
    done = run("set_vm_memory_high_watermark", text, REWINDMQ_URL=limited.http_url)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert run("set_vm_memory_high_watermark", "absolute", "2GB", REWINDMQ_URL=limited.http_url).returncode == 0
