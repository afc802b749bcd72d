"""RabbitMQ's own rabbitmqadmin, the script that its management plugin serves, against RewindMQ."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.peers import RABBITMQ
from tests.support.needs import require
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

SCRIPTS = list(
    RABBITMQ.parent.parent.glob("lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin")
)
require(SCRIPTS, "rabbitmqadmin (of Debian's package rabbitmq-server) is not there")
Admin = Callable[..., str]


@pytest.fixture
def admin(broker: RunningBroker) -> Admin:
    def ask(*arguments: str) -> str:
        command = [sys.executable, "-W", "ignore", str(SCRIPTS[0]), "-P", str(broker.http_port), "-f", "raw_json"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done.stdout)
        return done.stdout

    return ask


def test_declare_publish_get_purge_export_and_delete(admin: Admin, tmp_path: Path) -> None:
    assert admin("declare", "queue", "name=q", "durable=true") == "queue declared\n"
    assert admin("declare", "exchange", "name=x", "type=topic") == "exchange declared\n"
    assert admin("declare", "binding", "source=x", "destination=q", "routing_key=a.#") == "binding declared\n"
    assert admin("publish", "exchange=x", "routing_key=a.b", "payload=hello") == "Message published\n"
    assert admin("publish", "exchange=x", "routing_key=b", "payload=x").startswith("Message published but NOT routed")
    for redelivered in (False, True):
        (message,) = json.loads(admin("get", "queue=q", "ackmode=ack_requeue_true"))
        assert (message["payload"], message["routing_key"], message["redelivered"]) == ("hello", "a.b", redelivered)
    (queue,) = json.loads(admin("list", "queues", "name", "messages", "message_stats.publish"))
    assert queue == {"name": "q", "messages": 1, "message_stats": {"publish": 1}}
    assert {each["source"] for each in json.loads(admin("list", "bindings"))} == {"", "x"}
    assert admin("purge", "queue", "name=q") == "queue purged\n"
    (overview,) = json.loads(admin("show", "overview", "rabbitmq_version", "object_totals.queues"))
    assert overview == {"rabbitmq_version": "3.13.7", "object_totals": {"queues": 1}}
    exported = tmp_path / "definitions.json"
    admin("export", str(exported))
    assert [each["name"] for each in json.loads(exported.read_text())["queues"]] == ["q"]
    admin("delete", "binding", "source=x", "destination=q", "destination_type=queue", "properties_key=a.%23")
    assert admin("delete", "exchange", "name=x") == "exchange deleted\n"
    assert admin("delete", "queue", "name=q") == "queue deleted\n"
    assert json.loads(admin("list", "queues")) == []
    admin("import", str(exported))
    assert [each["name"] for each in json.loads(admin("list", "queues", "name"))] == ["q"]


def test_users_vhosts_policies_and_what_is_connected(admin: Admin) -> None:
    assert admin("declare", "vhost", "name=v") == "vhost declared\n"
    assert admin("declare", "user", "name=u", "password=p", "tags=") == "user declared\n"
    admin("declare", "permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*")
    admin("declare", "policy", "name=p", "pattern=^q", 'definition={"max-length":1}')
    assert [each["name"] for each in json.loads(admin("list", "users", "name"))] == ["guest", "u"]
    assert [each["name"] for each in json.loads(admin("list", "policies", "name"))] == ["p"]
    for what in ("nodes", "connections", "channels", "consumers", "permissions", "parameters", "exchanges", "vhosts"):
        json.loads(admin("list", what))
    for kind, name in (("policy", "p"), ("user", "u"), ("vhost", "v")):
        assert admin("delete", kind, f"name={name}") == f"{kind} deleted\n"
