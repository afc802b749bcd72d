"""Health checks and what a node is, peeking, closing connections, the formatters json_stream and erlang; texts and exit
codes beside rabbitmq-diagnostics 3.10.8."""

import os
import subprocess
from pathlib import Path

import httpx2
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from rewindmq.engine.config import Config
from tests.support.commands import COMMAND, Cli
from tests.support.forked import run
from tests.support.running import RunningBroker

NODE = "rewindmq@localhost"


@pytest.fixture(scope="module", autouse=True)
def queues(broker: RunningBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("cq", durable=True, arguments={"x-max-length": 100})
        channel.queue_declare("qq", durable=True, arguments={"x-queue-type": "quorum"})
        properties = pika.BasicProperties(headers={"a": 1}, content_type="text/plain", delivery_mode=2)
        channel.basic_publish("", "qq", b"first")
        channel.basic_publish("", "qq", b"hello" * 20, properties)


def test_checks_that_pass(cli: Cli, broker: RunningBroker) -> None:
    ports = f"{broker.amqp_port}, {broker.http_port}"
    for command, said in (
        (
            ("check_running",),
            f"Checking if RabbitMQ is running on node {NODE} ...\n"
            f"RabbitMQ on node {NODE} is fully booted and running\n",
        ),
        (("is_running", "-q"), f"RabbitMQ on node {NODE} is fully booted and running\n"),
        (("check_alarms", "-q"), f"Node {NODE} reported no alarms, local or clusterwide\n"),
        (
            ("check_local_alarms",),
            f"Asking node {NODE} to report any local resource alarms ...\nNode {NODE} reported no local alarms\n",
        ),
        (("alarms", "-q"), f"Node {NODE} reported no alarms, local or clusterwide\n"),
        (("check_virtual_hosts", "-q"), f"Node {NODE} reported all vhosts as running\n"),
        (
            ("check_port_listener", "-q", str(broker.amqp_port)),
            f"A listener for port {broker.amqp_port} is running on node {NODE}.\n",
        ),
        (("check_protocol_listener", "-q", "amqp"), f"A listener for protocol amqp is running on node {NODE}.\n"),
        (
            ("check_port_connectivity",),
            f"Testing TCP connections to all active listeners on node {NODE} ...\n"
            f"Successfully connected to ports {ports} on node {NODE}.\n",
        ),
        (("check_certificate_expiration", "-q"), "No certificates are expiring within 4 weeks.\n"),
        (("server_version",), f"Asking node {NODE} for its RabbitMQ version...\n3.13.7\n"),
        (
            ("listeners", "-q"),
            "".join(
                f"Interface: {address}, port: {port}, protocol: {protocol}, purpose: {purpose}\n"
                for port, protocol, purpose in (
                    (broker.amqp_port, "amqp", "AMQP 0-9-1"),
                    (broker.http_port, "http", "HTTP API"),
                )
                for address in Config(Path()).addresses
            ),
        ),
        (("node_health_check",), f"Checking health of node {NODE} ...\nHealth check passed\n"),
        (("resource_alarms", "-q"), f"Node {NODE} reported no alarms, local or clusterwide\n"),
        (("wait", "-q", "--pid", str(broker.process.pid)), ""),
        (("memory_breakdown", "--unit", "mb"), None),
        (("await_startup", "-q"), ""),
        (("check_running", "--silent"), ""),
        (("check_virtual_hosts", "--formatter", "json"), '{"result": "ok"}\n'),
        (("enable_feature_flag", "-q", "quorum_queue"), ""),
        (("enable_feature_flag", "-q", "all"), ""),
        (("list_unresponsive_queues",), "Listing unresponsive queues for vhost / ...\n"),
        (("list_feature_flags", "-s"), None),
        (("list_deprecated_features", "-s", "name"), None),
        (("environment", "-q"), None),
        (("report",), None),
    ):
        done = cli(*command)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert said is None or done.stdout == said, command


def test_checks_that_fail(cli: Cli, broker: RunningBroker) -> None:
    ports = f"{broker.amqp_port}, {broker.http_port}"
    for command, code, said in (
        (
            ("check_port_listener", "1"),
            69,
            f"Error: No listener for port 1 is active on node {NODE}. Found listeners"
            f" that use the following ports: {ports}",
        ),
        (
            ("check_protocol_listener", "mqtt"),
            69,
            f"Error: No listener for protocol mqtt is active on node {NODE}."
            " Found listeners for the following protocols: amqp, http",
        ),
        (("check_port_connectivity", "--address", "127.0.0.255", "-t", "2"), 69, "Error: Connection to ports of the"),
        (("enable_feature_flag", "nosuch"), 69, "Error: Feature flag is not supported"),
        (("list_feature_flags", "nosuch"), 64, "Error (argument validation): Info key(s) nosuch are not supported"),
        (("list_queues", "-n", "other@host"), 69, "Error: unable to perform an operation on node 'other@host': at"),
        (("eval", "1 + 1."), 69, "Error: eval: there is no Erlang node to run it in"),
        (("join_cluster", "rabbit@a", "--ram"), 69, "Error: join_cluster: nodes have no members"),
        (("close_connection", "nobody", "bye"), 69, "Error: there is no connection nobody"),
        (("close_all_connections", "-p", "nosuch", "bye"), 65, "Error: Virtual host 'nosuch' does not exist"),
        (("peek", "qq", "3"), 69, "Error: Target queue does not have a message at that position"),
        (("peek", "nosuch", "1"), 65, "Error: Target queue was not found in virtual host '/'"),
        (("report", "--formatter", "json"), 64, "Error (argument validation): a report has no formatter"),
    ):
        done = cli(*command)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), (command, done.stderr)
        assert done.stderr.startswith(said), (command, done.stderr)
    done = run("await_startup", "-t", "1", "--url", "http://127.0.0.1:9")
    assert (done.returncode, "did not start within 1 seconds" in done.stderr) == (75, True)


def test_what_it_says_of_itself(cli: Cli, broker: RunningBroker) -> None:
    flags = cli("list_feature_flags", "-q", "name", "state").stdout.splitlines()
    assert flags[0] == "name\tstate"
    assert "quorum_queue\tenabled" in flags
    assert "global_qos" in cli("list_deprecated_features", "-s", "name").stdout
    assert cli("list_deprecated_features", "-s", "--used").stdout == ""
    assert f"amqp_port = {broker.amqp_port}\n" in cli("environment").stdout
    assert "default_pass" not in cli("environment").stdout
    report = cli("report").stdout
    for part in ("Runtime\n", "Cluster name: ", "Listing queues for vhost / ...\n", "qq\t2\n", "End of server status"):
        assert part in report, part


def test_the_node_that_has_to_answer(cli: Cli) -> None:
    assert cli("-n", NODE, "list_queues", "-s").stdout == "cq\t0\nqq\t2\n"
    assert cli("list_queues", "-s", "--node", NODE, "--local").stdout == "cq\t0\nqq\t2\n"
    assert cli("list_queues", "-s", "--online").stdout == "cq\t0\nqq\t2\n"
    assert cli("list_queues", "-s", "--offline").stdout == ""


def test_json_stream_and_erlang_terms(cli: Cli) -> None:
    asked = ("list_queues", "name", "messages", "arguments", "durable", "policy")
    assert cli(*asked[:-1], "--formatter=json_stream").stdout == (
        '{"name":"cq","messages":0,"arguments":[["x-max-length","signedint",100]],"durable":true}\n\n'
        '{"name":"qq","messages":2,"arguments":[["x-queue-type","longstr","quorum"]],"durable":true}\n\n'
    )
    assert cli(*asked, "--formatter=erlang", "-q").stdout == (
        '[[{name,<<"cq">>},\n  {messages,0},\n  {arguments,[{<<"x-max-length">>,signedint,100}]},\n  {durable,true},\n'
        "  {policy,''}],\n"
        ' [{name,<<"qq">>},\n  {messages,2},\n  {arguments,[{<<"x-queue-type">>,longstr,<<"quorum">>}]},\n'
        "  {durable,true},\n  {policy,''}]]\n"
    )
    assert cli("list_queues", "name", "durable", "--formatter=erlang", "-q").stdout == (
        '[[{name,<<"cq">>},{durable,true}],\n [{name,<<"qq">>},{durable,true}]]\n'
    )
    assert cli("list_policies", "--formatter=erlang", "-s").stdout == "[]\n"


def test_peeking_leaves_the_message_where_it_is(cli: Cli) -> None:
    shown = cli("peek", "qq", "2", "--formatter=csv").stdout.splitlines()
    assert shown == [
        '"keys","values"',
        '"delivery_mode","2"',
        '"content_type","text/plain"',
        '"routing_keys","qq"',
        '"exchange",""',
        f'"payload (max 64 bytes)","{("hello" * 20)[:64]}"',
        '"header.a","1"',
        '"header.x-delivery-count","0"',
    ]
    assert "│ payload (max 64 bytes)" in cli("peek", "qq", "1", "-q").stdout
    assert '"payload (max 64 bytes)": "first"' in cli("peek", "qq", "1", "--formatter", "json").stdout
    assert cli("list_queues", "-s", "name", "messages_ready").stdout == "cq\t0\nqq\t2\n"


def test_connections_are_closed_by_name_by_vhost_and_by_user(cli: Cli, broker: RunningBroker) -> None:
    def connect() -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(broker.amqp_url))

    def told(connection: pika.BlockingConnection, reason: str) -> None:
        with pytest.raises(ConnectionClosedByBroker, match=f"CONNECTION_FORCED - {reason}"):
            connection.process_data_events(30)

    first = connect()
    name = cli("list_connections", "-s", "name").stdout.strip()
    octets = cli("list_connections", "-s", "recv_oct", "send_oct", "timeout").stdout.split()
    assert int(octets[0]) > 100 < int(octets[1])
    assert cli("close_connection", name, "one").stdout == f"Closing connection {name}, reason: one...\n"
    told(first, "one")
    second, third = connect(), connect()
    done = cli("close_all_connections", "--limit", "1", "two")
    assert done.stdout == "Closing 1 connections in vhost /, reason: two...\nClosed 1 connections\n"
    assert len(cli("list_connections", "-s", "name").stdout.splitlines()) == 1
    told(second, "two")
    fourth = connect()
    done = cli("close_all_connections", "-q", "--global", "three")
    assert done.stdout == "Closed 2 connections\n"
    told(third, "three")
    told(fourth, "three")
    fifth = connect()
    assert cli("close_all_user_connections", "-q", "guest", "four:\nJosé").stdout == "Closed 1 connections\n"
    told(fifth, "four: José")


def test_it_may_be_called_rabbitmqctl(tmp_path: Path, broker: RunningBroker) -> None:
    """A link is enough: options and commands are the same."""
    link = tmp_path / "rabbitmqctl"
    os.symlink(COMMAND, link)
    done = subprocess.run(
        [str(link), "list_queues", "-s", "name"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin", "REWINDMQ_URL": broker.http_url},
    )
    assert done.stdout == "cq\nqq\n"


def test_http_says_what_is_unacked(broker: RunningBroker) -> None:
    api = httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("qq", lambda *message: None, consumer_tag="holder")
        connection.process_data_events(0.5)
        channel.basic_get("qq")
        consumed, fetched = api.get("/queues/%2F/qq/unacked").json()
        assert (consumed["consumer_tag"], consumed["message_bytes"], consumed["redelivered"]) == ("holder", 5, False)
        assert (fetched["consumer_tag"], fetched["message_bytes"]) == ("", 100)
        assert fetched["channel_details"]["number"] == 1


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("audit", "--data", "d"), "rewindmq spark audit --data DIR"),
        (("publish", "q", "text"), "POST /api/exchanges/VHOST/EXCHANGE/publish"),
    ],
)
def test_a_command_that_is_elsewhere_says_where(command: tuple[str, ...], where: str) -> None:
    done = run(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
    assert where in done.stderr
