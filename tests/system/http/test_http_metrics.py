"""Prometheus, read by its own parser: the 40 metrics that RabbitMQ's dashboard asks for
(docs/behaviours/interfaces.md#metrics), by name, type
and value after real traffic; per object, detailed, and at a port of its own."""

from collections.abc import Callable

import httpx2
import pika
import pytest

from tests.support.metrics import GUEST, families, metrics, value
from tests.support.ports import free_port
from tests.support.running import RunningBroker

GAUGES = """
build_info identity_info erlang_uptime_seconds process_resident_memory_bytes resident_memory_limit_bytes
disk_space_available_bytes disk_space_available_limit_bytes process_open_fds process_max_fds queue_messages_ready
queue_messages_unacked queues connections channels global_publishers global_consumers
"""
COUNTERS = """
queues_declared_total queues_created_total queues_deleted_total connections_opened_total connections_closed_total
channels_opened_total channels_closed_total global_messages_received_total global_messages_received_confirm_total
global_messages_confirmed_total global_messages_routed_total global_messages_unroutable_dropped_total
global_messages_unroutable_returned_total global_messages_delivered_total
global_messages_delivered_consume_auto_ack_total global_messages_delivered_consume_manual_ack_total
global_messages_delivered_get_auto_ack_total global_messages_delivered_get_manual_ack_total
global_messages_get_empty_total global_messages_redelivered_total global_messages_acknowledged_total
"""
HISTOGRAM = "message_size_bytes_bucket message_size_bytes_count message_size_bytes_sum"
DEATHS = ("confirmed", "delivery_limit", "expired", "maxlen", "rejected")


def test_the_forty_names_and_types(broker: RunningBroker) -> None:
    found = metrics(broker)
    kinds = {sample.name: family.type for family in found.values() for sample in family.samples}
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAM)):
        for name in names.split():
            assert kinds.get(f"rabbitmq_{name}") == kind, name
    assert len((GAUGES + COUNTERS + HISTOGRAM).split()) == 40
    (identity,) = found["rabbitmq_identity_info"].samples
    assert set(identity.labels) == {
        "rabbitmq_node",
        "rabbitmq_cluster",
        "rabbitmq_cluster_permanent_id",
        "rabbitmq_endpoint",
    }


@pytest.fixture
def difference(broker: RunningBroker) -> Callable[[str], float]:
    """`difference(name)`: how much it grew since the test began."""
    before = metrics(broker)
    return lambda name, **labels: value(metrics(broker), name, **labels) - value(before, name, **labels)


def test_counts_after_traffic(broker: RunningBroker, difference: Callable[..., float]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("counted", durable=True)
        for size in (0, 100, 101, 1_000, 1_001, 20_000):
            channel.basic_publish("", "counted", b"x" * size)
        channel.basic_publish("", "nowhere", b"dropped")
        channel.basic_publish("", "nowhere", b"returned", mandatory=True)
        confirming = connection.channel()
        confirming.confirm_delivery()
        confirming.basic_publish("amq.fanout", "", b"to none")
        confirming.basic_publish("", "counted", b"last")
        method, _, _ = channel.basic_get("counted")
        channel.basic_nack(method.delivery_tag)
        channel.basic_get("counted", auto_ack=True)
        channel.basic_qos(prefetch_count=2)
        taken: list[int] = []
        channel.basic_consume("counted", lambda _, method, *message: taken.append(method.delivery_tag))
        while len(taken) < 2:
            connection.process_data_events(0.1)
        channel.basic_ack(taken[0])
        while len(taken) < 3:
            connection.process_data_events(0.1)
        assert difference("global_publishers") == 2
        assert difference("global_consumers") == 1
        assert value(metrics(broker, "/metrics/per-object"), "queue_messages_unacked", queue="counted") == 2
    for name, more in {
        "global_messages_received_total": 10,
        "global_messages_received_confirm_total": 2,
        "global_messages_confirmed_total": 2,
        "global_messages_routed_total": 7,
        "global_messages_unroutable_dropped_total": 2,
        "global_messages_unroutable_returned_total": 1,
        "global_messages_delivered_total": 5,
        "global_messages_delivered_consume_manual_ack_total": 3,
        "global_messages_delivered_consume_auto_ack_total": 0,
        "global_messages_delivered_get_manual_ack_total": 1,
        "global_messages_delivered_get_auto_ack_total": 1,
        "global_messages_redelivered_total": 1,
        "global_messages_acknowledged_total": 1,
        "global_messages_get_empty_total": 0,
        "queues_created_total": 1,
        "queues_declared_total": 1,
        "queues_deleted_total": 0,
        "connections_opened_total": 1,
        "channels_opened_total": 2,
        "queue_messages_ready": 5,
        "queue_messages_unacked": 0,
        "global_publishers": 0,
        "message_size_bytes_count": 10,
        "message_size_bytes_sum": 22_202 + 7 + 8 + 7 + 4,
    }.items():
        assert difference(name) == more, name
    grown = {bound: difference("message_size_bytes_bucket", le=bound) for bound in BOUNDS}
    assert list(grown.values()) == [6, 8, 9, 10, 10, 10, 10, 10, 10]


BOUNDS = ("100", "1000", "10000", "100000", "1000000", "10000000", "50000000", "100000000", "+Inf")


def test_deaths_by_type_and_strategy(broker: RunningBroker, difference: Callable[..., float]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("graves", durable=True)
        buried = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
        surely = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        channel.queue_declare("short", durable=True, arguments=buried | {"x-max-length": 1})
        channel.queue_declare("forgetful", durable=True, arguments={"x-max-length": 1})
        channel.queue_declare("sure", durable=True, arguments=buried | surely)
        channel.queue_declare("limited", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
        channel.confirm_delivery()
        for queue in ("short", "short", "short", "forgetful", "forgetful", "sure", "limited"):
            channel.basic_publish("", queue, b"x")
        method, _, _ = channel.basic_get("sure")
        channel.basic_reject(method.delivery_tag, requeue=False)
        method, _, _ = channel.basic_get("limited")
        channel.basic_nack(method.delivery_tag)
        while channel.queue_declare("graves", passive=True).method.message_count < 3:
            connection.process_data_events(0.05)
    for reason, queue_type, strategy, more in (
        ("maxlen", "classic", "at_most_once", 2),
        ("maxlen", "classic", "disabled", 1),
        ("rejected", "quorum", "at_least_once", 1),
        ("confirmed", "quorum", "at_least_once", 1),
        ("delivery_limit", "quorum", "disabled", 1),
        ("delivery_limit", "quorum", "at_most_once", 0),
        ("expired", "classic", "at_most_once", 0),
        ("rejected", "classic", "at_most_once", 0),
    ):
        labels = {"queue_type": f"rabbit_{queue_type}_queue", "dead_letter_strategy": strategy}
        assert difference(f"global_messages_dead_lettered_{reason}_total", **labels) == more, (reason, labels)


def test_one_sample_for_each_queue_channel_and_connection(broker: RunningBroker) -> None:
    api = httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        api.put("/vhosts/other").raise_for_status()
        for vhost, queue in (("%2F", "a.1"), ("%2F", 'b"\\2'), ("other", "a.3")):
            api.put(f"/queues/{vhost}/{queue}", json={"durable": True}).raise_for_status()
        channel.basic_publish("", "a.1", b"12345")
        while not channel.basic_get("a.1", auto_ack=True)[0]:
            pass
        found = metrics(broker, "/metrics/per-object")
        assert value(found, "queue_messages_published_total", vhost="/", queue="a.1") == 1
        assert value(found, "queue_get_total", vhost="/", queue="a.1") == 1
        assert value(found, "queue_messages_ready", vhost="/", queue='b"\\2') == 0
        name = api.get("/channels").json()[0]["name"]
        assert value(found, "channel_messages_published_total", channel=name) == 1
        assert value(found, "channel_get_total", channel=name) == 1
        connection_name = name.removesuffix(" (1)")
        received = api.get("/connections").json()[0]["recv_oct"]
        assert value(found, "connection_incoming_bytes_total", connection=connection_name) == received > 100
    chosen = metrics(broker, "/metrics/detailed", family=["queue_coarse_metrics", "vhost_status"], queue=r"^a\.")
    ready = chosen["rabbitmq_detailed_queue_messages_ready"].samples
    assert {(each.labels["vhost"], each.labels["queue"]) for each in ready} == {("/", "a.1"), ("other", "a.3")}
    assert {each.labels["vhost"] for each in chosen["rabbitmq_cluster_vhost_status"].samples} == {"/", "other"}
    assert "rabbitmq_detailed_queue_consumers" not in chosen
    chosen = metrics(broker, "/metrics/detailed", family="queue_consumer_count", vhost="other")
    (sample,) = chosen["rabbitmq_detailed_queue_consumers"].samples
    assert sample.labels == {"vhost": "other", "queue": "a.3"}
    assert list(metrics(broker, "/metrics/detailed")) == ["rabbitmq_build_info", "rabbitmq_identity_info"]
    refused = httpx2.get(f"{broker.http_url}/metrics/detailed", params={"queue": "("}, auth=GUEST)
    assert refused.status_code == 400
    assert value(metrics(broker, "/metrics/memory-breakdown"), "memory_rss_bytes") > 1_000_000


def waits_of(broker: RunningBroker, name: str) -> dict[str, float]:
    """The samples of one of our histograms, by bound, and its sum."""
    samples = metrics(broker)[name].samples
    return {each.labels.get("le", each.name.removeprefix(f"{name}_")): each.value for each in samples}


def test_b79_waits_of_a_client_are_in_metrics_and_listings(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker(None)
    api = httpx2.Client(base_url=f"{broker.http_url}/api", auth=GUEST, trust_env=False)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("waits", durable=True)
        channel.queue_declare("idle", durable=True)
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "waits", b"x")
        connection.sleep(0.6)
        shown = api.get("/queues/%2F/waits").json()
        assert 600 <= shown["oldest_ready_age_ms"] < 60_000
        assert (shown["delivery_wait_avg_ms"], shown["ack_wait_avg_ms"]) == (None, None)
        assert api.get("/queues/%2F/idle").json()["oldest_ready_age_ms"] is None
        tags = [channel.basic_get("waits")[0].delivery_tag for _ in range(2)]
        connection.sleep(0.12)
        channel.basic_ack(tags[1], multiple=True)
        channel.basic_get("idle")  # the ack is there
    delivery, ack = (waits_of(broker, f"rewindmq_{what}_wait_seconds") for what in ("delivery", "ack"))
    assert (delivery["0.5"], delivery["300"], delivery["+Inf"], delivery["count"]) == (0, 2, 2, 2)
    assert (ack["0.1"], ack["300"], ack["count"]) == (0, 1, 1)
    assert delivery["sum"] >= 1.2
    assert ack["sum"] >= 0.12
    assert metrics(broker)["rewindmq_oldest_ready_age_seconds"].samples[0].value >= 0.72
    found = metrics(broker, "/metrics/per-object")
    (age,) = found["rewindmq_queue_oldest_ready_age_seconds"].samples
    assert (age.labels, age.value >= 0.72) == ({"vhost": "/", "queue": "waits"}, True)
    (count,) = [
        each
        for each in found["rewindmq_queue_ack_wait_seconds"].samples
        if each.labels["queue"] == "waits" and each.name.endswith("_count")
    ]
    assert count.value == 1
    (listed,) = [each for each in api.get("/queues").json() if each["name"] == "waits"]
    assert listed["ack_wait_avg_ms"] == pytest.approx(ack["sum"] * 1_000, abs=0.001)
    assert listed["delivery_wait_avg_ms"] == pytest.approx(delivery["sum"] * 500, abs=0.001)


def test_a_port_of_its_own_has_nothing_else(start_broker: Callable[..., RunningBroker]) -> None:
    port = free_port()
    broker = start_broker(None, "--prometheus-port", str(port))
    here = f"http://127.0.0.1:{port}"
    assert "rabbitmq_build_info" in families(httpx2.get(f"{here}/metrics", trust_env=False).text)
    assert httpx2.get(f"{here}/metrics/per-object", trust_env=False).status_code == 200
    refused = httpx2.get(f"{here}/metrics/detailed", params={"family": "queue_metrics", "queue": "(a+)+$("})
    assert (refused.status_code, refused.text[:21]) == (400, "Invalid 'queue' regex")
    assert httpx2.get(f"{broker.http_url}/metrics", trust_env=False).status_code == 401
    for path in ("/", "/api/overview", "/api/whoami"):
        assert httpx2.get(here + path, auth=("guest", "guest"), trust_env=False).status_code == 404
    check = f"{broker.http_url}/api/health/checks/port-listener/{port}"
    assert httpx2.get(check, auth=("guest", "guest"), trust_env=False).json() == {"status": "ok", "port": port}


def test_a_connection_that_asks_for_metrics_has_logged_in(start_broker: Callable[..., RunningBroker]) -> None:
    """A scraper is no stranger: connections that have not logged in do not take its place."""
    broker = start_broker(None)
    with httpx2.Client(base_url=broker.http_url, auth=GUEST, trust_env=False) as scraper:
        found = [
            sample.value
            for sample in families(scraper.get("/metrics").text)["rewindmq_door_connections"].samples
            if sample.labels == {"protocol": "http", "logged_in": "true"}
        ]
    assert found == [1]


def test_names_are_told_to_those_who_may_see_them(broker: RunningBroker, api: httpx2.Client) -> None:
    """A user without permissions in a vhost, and anybody who has not logged in, learns no name of it."""
    api.put("/vhosts/private").raise_for_status()
    api.put("/queues/private/secret-plan", json={"durable": True}).raise_for_status()
    api.put("/exchanges/private/secret-way", json={"durable": True, "type": "fanout"}).raise_for_status()
    api.put("/users/limited", json={"password": "limited", "tags": "management"}).raise_for_status()
    everything = "configure", "write", "read"
    api.put("/permissions/%2F/limited", json=dict.fromkeys(everything, ".*")).raise_for_status()
    api.put("/queues/%2F/open-plan", json={"durable": True}).raise_for_status()
    detailed = "/metrics/detailed?" + "&".join(
        f"family={each}"
        for each in (
            "queue_metrics",
            "channel_metrics",
            "connection_metrics",
            "vhost_status",
            "exchange_names",
            "exchange_bindings",
        )
    )
    session = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "private"))
    session.channel()
    port = session._impl.params.port
    names = ("secret-plan", "secret-way", "private", f" -> 127.0.0.1:{port}")

    def text(path: str, auth: tuple[str, str] | None) -> str:
        answer = httpx2.get(broker.http_url + path, auth=auth, trust_env=False)
        return answer.text if answer.status_code == 200 else ""

    for path in ("/metrics/per-object", detailed, detailed + "&vhost=private", "/metrics"):
        for auth in (None, ("limited", "limited")):
            assert [name for name in names if name in text(path, auth)] == [], (path, auth)
    assert "open-plan" in text("/metrics/per-object", ("limited", "limited"))
    assert "open-plan" not in text("/metrics/per-object", None)
    assert [name for name in names if name not in text(detailed, ("guest", "guest"))] == []
    session.close()
    assert httpx2.get(broker.http_url + "/metrics/per-object", auth=("guest", "no"), trust_env=False).status_code == 401
