"""A node's listeners, its log level, the cluster's name, and waiting for it."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from rewindmq.engine.config import Config, bracketed
from tests.support.forked import run
from tests.support.running import RunningBroker

NODE = "rewindmq@localhost"


def ask(running: RunningBroker, *arguments: str) -> tuple[int, str]:
    done = run(*arguments, REWINDMQ_URL=running.http_url)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def running(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker()


def test_stop_app_closes_the_doors_and_start_app_opens_them(running: RunningBroker) -> None:
    parameters = pika.URLParameters(running.amqp_url)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
    assert ask(running, "stop_app") == (0, f"Stopping rabbit application on node {NODE} ...\n")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.process_data_events(5)
    reason = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert (closed.value.reply_code, closed.value.reply_text) == (320, reason)
    with pytest.raises(AMQPConnectionError):
        pika.BlockingConnection(parameters)
    assert ask(running, "check_running")[0] == 69
    code, said = ask(running, "check_port_listener", str(running.amqp_port))
    assert (code, "No listener for port" in said) == (69, True)
    assert ask(running, "list_queues", "-s", "name", "messages") == (0, "kept\t1\n"), "the API stays"
    assert ask(running, "start_app") == (0, f"Starting node {NODE} ...\n")
    assert ask(running, "check_running", "-s") == (0, "")
    with pika.BlockingConnection(parameters) as again:
        assert again.channel().basic_get("kept", auto_ack=True)[2] == b"x"


def test_suspended_listeners_take_no_new_connections(running: RunningBroker) -> None:
    parameters = pika.URLParameters(running.amqp_url)
    with pika.BlockingConnection(parameters) as connection:
        assert ask(running, "suspend_listeners", "-q") == (0, "")
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(parameters)
        assert connection.channel().queue_declare("", exclusive=True).method.queue, "an open one goes on"
        assert ask(running, "resume_listeners", "-q") == (0, "")
        assert ask(running, "resume_listeners", "-q") == (0, ""), "it is asked twice"
        pika.BlockingConnection(parameters).close()


def test_an_address_that_was_taken_meanwhile_is_named(running: RunningBroker) -> None:
    assert ask(running, "suspend_listeners", "-q") == (0, "")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((running.host, running.amqp_port))
        other.listen()
        code, said = ask(running, "resume_listeners", "-q")
        assert (code, said) == (69, "Error: the node cannot listen again: Address already in use\n")
    assert ask(running, "resume_listeners", "-q") == (0, "")
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()


def test_every_address_of_localhost_is_listened_to(running: RunningBroker) -> None:
    """127.0.0.1, and ::1 where the machine has IPv6."""
    for address in Config(running.data).addresses:
        for port in (running.amqp_port, running.http_port):
            socket.create_connection((address, port), timeout=5).close()
        with pika.BlockingConnection(pika.ConnectionParameters(address, running.amqp_port)):
            code, said = ask(running, "list_connections", "-s", "name", "peer_host")
        name, host = said.rstrip("\n").split("\t")
        assert (code, host) == (0, address)
        assert name.endswith(f" -> {bracketed(address)}:{running.amqp_port}")


def test_the_log_level_is_set(running: RunningBroker) -> None:
    assert ask(running, "set_log_level", "error") == (0, 'Setting log level to "error" ...\n')
    before = len(running.errors)
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    assert ask(running, "set_log_level", "info", "-q") == (0, "")
    pika.BlockingConnection(pika.URLParameters(running.amqp_url)).close()
    deadline = time.monotonic() + 60
    while len(running.errors) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len([line for line in running.errors[before:] if "connected to vhost" in line]) == 1
    code, said = ask(running, "set_log_level", "loud")
    assert (code, said) == (
        65,
        "Error (argument validation): level loud is not supported. Supported levels: debug, info, warning, error\n",
    )


def test_the_cluster_is_given_a_name(running: RunningBroker) -> None:
    assert ask(running, "set_cluster_name", "airport") == (0, "Setting cluster name to airport ...\n")
    assert "Cluster name: airport\n" in ask(running, "cluster_status")[1]
    with pika.BlockingConnection(pika.URLParameters(running.amqp_url)) as connection:
        assert connection._impl.server_properties["cluster_name"] == "airport"
    running.stop()
    assert ask(running, "set_cluster_name", "")[0] == 65


def test_waiting_for_a_node(running: RunningBroker, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    pidfile.write_text(f"{running.process.pid}\n")
    assert ask(running, "wait", str(pidfile)) == (
        0,
        f"Waiting for pid file '{pidfile}' to appear\npid is {running.process.pid}\n"
        f"Waiting for node to boot on process {running.process.pid}\n",
    )
    code, said = ask(running, "wait", str(tmp_path / "none"), "-t", "0.1", "-q")
    assert (code, said) == (75, f"Error: there is no process id in {tmp_path / 'none'}\n")
    running.kill()
    code, said = ask(running, "wait", str(pidfile), "-q")
    assert (code, said) == (69, f"Error: process {running.process.pid} is not running\n")
    assert ask(running, "wait")[0] == 65
