"""Overview, connections, channels, consumers, health, Prometheus metrics
(docs/behaviours/interfaces.md#metrics) and the web page."""

import re
import time

import httpx2
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from tests.support.running import RunningBroker


def test_overview_and_nodes(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    overview = api.get("/overview").json()
    assert overview["product_name"] == "RewindMQ"
    assert overview["rabbitmq_version"] == "3.13.7"
    assert overview["object_totals"]["queues"] == len(api.get("/queues").json())
    assert {each["port"] for each in overview["listeners"]} == {broker.amqp_port, broker.http_port}
    assert [(each["partition"], each["topic"], each["owned"]) for each in overview["log"]] == [
        ("queues-0", None, True),
        ("queues-1", None, True),
    ]
    (node,) = api.get("/nodes").json()
    assert (node["name"], node["running"]) == (overview["node"], True)
    assert api.get(f"/nodes/{node['name']}").json()["os_pid"] == str(broker.process.pid)
    assert api.get("/nodes/other@host").status_code == 404


@pytest.mark.parametrize("check", ["alarms", "local-alarms", "virtual-hosts", "ready-to-serve-clients"])
def test_health_checks(api: httpx2.Client, check: str) -> None:
    assert api.get(f"/health/checks/{check}").json() == {"status": "ok"}


@pytest.mark.parametrize("check", ["ready-to-serve-clients", "is-in-service"])
def test_balancers_and_kubernetes_need_no_login(broker: RunningBroker, check: str) -> None:
    answer = httpx2.get(f"{broker.http_url}/api/health/checks/{check}", trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert httpx2.get(f"{broker.http_url}/api/health/checks/alarms", trust_env=False).status_code == 401


def test_connections_channels_and_consumers(api: httpx2.Client, broker: RunningBroker, queue: str) -> None:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "orders service"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    channel.basic_qos(prefetch_count=7)
    tag = channel.basic_consume(queue, lambda *message: None, arguments={"x-priority": 5})
    connection.process_data_events(0.2)
    (shown,) = [each for each in api.get("/connections").json() if each["type"] == "network"]
    assert (shown["user"], shown["vhost"], shown["channels"], shown["state"]) == ("guest", "/", 1, "running")
    assert shown["client_properties"]["product"] == "Pika Python Client Library"
    assert shown["user_provided_name"] == "orders service"
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:{broker.amqp_port}", shown["name"])
    (open_channel,) = api.get("/channels").json()
    assert open_channel["name"] == f"{shown['name']} (1)"
    assert (open_channel["confirm"], open_channel["consumer_count"]) == (True, 1)
    assert (open_channel["messages_unacknowledged"], open_channel["prefetch_count"]) == (1, 7)
    (consumer,) = api.get("/consumers/%2F").json()
    assert (consumer["consumer_tag"], consumer["prefetch_count"], consumer["ack_required"]) == (tag, 7, True)
    assert consumer["queue"] == {"name": queue, "vhost": "/"}
    assert consumer["arguments"] == {"x-priority": 5}
    assert consumer["channel_details"]["connection_name"] == shown["name"]
    assert api.get(f"/queues/%2F/{queue}").json()["consumer_details"] == [consumer]
    closed = api.delete(
        f"/connections/{shown['name'].replace('>', '%3E').replace(' ', '%20')}", headers={"X-Reason": "enough"}
    )
    assert closed.status_code == 204
    with pytest.raises(ConnectionClosedByBroker, match=r"CONNECTION_FORCED - enough"):
        connection.process_data_events(5)
    deadline = time.monotonic() + 60
    while api.get("/channels").json() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert api.get("/channels").json() == []


def metrics_of(broker: RunningBroker) -> dict[str, float]:
    text = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest")).text
    return {name: float(value) for name, value in re.findall(r"^([^#\s][^ ]*(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}


def test_metrics_are_prometheus_text_and_exact(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    before = metrics_of(broker)
    api.put(f"/queues/%2F/{name}", json={"durable": True})
    content = {"properties": {}, "routing_key": name, "payload": "12345", "payload_encoding": "string"}
    api.post("/exchanges/%2F/amq.default/publish", json=content)
    after = metrics_of(broker)
    for metric, more in (
        ("rabbitmq_queues", 1),
        ("rabbitmq_queue_messages_ready", 1),
        ("rabbitmq_queue_messages_unacked", 0),
        ("rabbitmq_queue_messages_ready_bytes", 5),
        ("rabbitmq_queues_created_total", 1),
        ("rabbitmq_queues_declared_total", 1),
        ("rabbitmq_queues_deleted_total", 0),
        ('rabbitmq_global_messages_received_total{protocol="amqp091"}', 1),
        ('rabbitmq_global_messages_routed_total{protocol="amqp091"}', 1),
        ('rabbitmq_global_messages_received_confirm_total{protocol="amqp091"}', 1),
        ('rabbitmq_global_messages_confirmed_total{protocol="amqp091"}', 1),
        ('rewindmq_queue_messages_by_outcome{outcome="published",queue_type="classic"}', 1),
    ):
        assert after[metric] - before.get(metric, 0) == more, metric
    assert after["rabbitmq_process_resident_memory_bytes"] > 1_000_000
    assert any(metric.startswith('rabbitmq_build_info{rabbitmq_version="3.13.7"') for metric in after)
    assert any(metric.startswith("rabbitmq_identity_info{rabbitmq_node=") for metric in after)


def test_metrics_tell_of_the_log(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    api.put(f"/queues/%2F/{name}", json={"durable": True})
    log = api.get("/overview").json()["log"]
    found = metrics_of(broker)
    for each in log:
        labels = f'{{partition="{each["partition"]}"}}'
        assert found[f"rewindmq_log_next_offset{labels}"] == found[f"rewindmq_log_applied_offset{labels}"]
        assert found[f"rewindmq_log_next_offset{labels}"] == each["next_offset"] == each["durable_offset"] > 0
        assert found[f"rewindmq_log_lag_events{labels}"] == found[f"rewindmq_events_in_flight{labels}"] == 0
        assert found[f"rewindmq_partition_owned{labels}"] == 1
    assert found["rewindmq_nodes"] == 1
    assert "rewindmq_log_read_back_seconds" not in found


def test_every_metric_is_described_once(broker: RunningBroker, queue: str) -> None:
    answer = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest"))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    types = dict(re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", answer.text, re.MULTILINE))
    assert len(types) == answer.text.count("# TYPE ") == answer.text.count("# HELP ")
    names = {line.split("{")[0].split(" ")[0] for line in answer.text.splitlines() if not line.startswith("#")}
    parts = {"histogram": ("_bucket", "_count", "_sum")}
    assert names == {name + part for name, kind in types.items() for part in parts.get(kind, ("",))}


def test_the_web_page_asks_nobody_else(broker: RunningBroker) -> None:
    page = httpx2.get(broker.http_url)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_s166_the_web_page_shows_arguments_and_effective_policy(
    api: httpx2.Client, broker: RunningBroker, name: str
) -> None:
    assert api.put(f"/queues/%2F/{name}", json={"durable": True, "arguments": {"x-max-length": 7}}).status_code == 201
    policy = {"pattern": f"^{name}$", "definition": {"max-length": 5}}
    assert api.put(f"/policies/%2F/{name}", json=policy).status_code == 201
    queue = api.get(f"/queues/%2F/{name}").json()
    assert (queue["arguments"], queue["effective_policy_definition"]) == ({"x-max-length": 7}, {"max-length": 5})
    script = httpx2.get(f"{broker.http_url}/pages/lists.js").text
    assert "{...row.arguments, ...row.effective_policy_definition}" in script
    api.delete(f"/policies/%2F/{name}")
