"""Listings, to the letter as rabbitmqctl 3.10.8 printed them for the same queues, exchanges and policies (run with a
UTF-8 terminal, where its boxes are these characters). Rows of ours are ordered by name."""

import os
import subprocess
from collections.abc import Iterator

import httpx2
import pika
import pytest

from tests.support.commands import COMMAND, Cli
from tests.support.running import RunningBroker


@pytest.fixture(scope="module", autouse=True)
def topology(broker: RunningBroker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """Source [1]'s queues, and some with arguments of every kind."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": "quorum", "x-max-length": 7}
        queue = f"{broker.http_url}/api/queues/%2F/qq.1"  # this way the limit is a `long`; pika sends `signedint`
        assert (
            httpx2.put(queue, auth=("guest", "guest"), json={"durable": True, "arguments": arguments}).status_code
            == 201
        )
        channel.queue_declare("qq.2", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("limited.qq.3", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("limited.cq.1", durable=True, arguments={"x-queue-type": "classic"})
        channel.exchange_declare("ex1", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        channel.queue_bind("qq.1", "ex1", "a.*", arguments={"x": 1})
        channel.exchange_bind("amq.fanout", "ex1", "#")
        for _ in range(5):
            channel.basic_publish("", "qq.1", b"x")
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume("qq.1", lambda *message: None, consumer_tag="t0")
        channel.basic_consume(
            "limited.cq.1", lambda *m: None, auto_ack=True, consumer_tag="t1", arguments={"x-priority": 5}
        )
        connection.process_data_events(0.2)
        yield channel


@pytest.fixture(autouse=True)
def policy(topology: object, cli: Cli) -> None:
    done = cli("set_policy", "limited", r"^limited\.", '{"max-length":11}', "--apply-to", "queues")
    assert done.stdout == (
        'Setting policy "limited" for pattern "^limited\\." to "{"max-length":11}" with priority "0"'
        ' for vhost "/" ...\n'
    )


def test_list_queues_as_a_pretty_table_s164(cli: Cli) -> None:
    """Source [1] to the letter; its rows come in no order, ours by name."""
    shown = cli("list_queues", "name", "durable", "arguments", "policy", "--formatter=pretty_table", "--silent")
    assert (shown.returncode, shown.stderr) == (0, "")
    arguments = 70 * "─"
    rule = f"├──────────────┼─────────┼{arguments}┼─────────┤"
    limit = '{<<"x-queue-type">>,longstr,<<"quorum">>}{<<"x-max-length">>,long,7}'
    assert shown.stdout.splitlines() == [
        f"┌──────────────┬─────────┬{arguments}┬─────────┐",
        f"│ name         │ durable │ arguments{59 * ' '} │ policy  │",
        rule,
        f'│ limited.cq.1 │ true    │ {{<<"x-queue-type">>,longstr,<<"classic">>}}{26 * " "} │ limited │',
        rule,
        f'│ limited.qq.3 │ true    │ {{<<"x-queue-type">>,longstr,<<"quorum">>}}{27 * " "} │ limited │',
        rule,
        f"│ qq.1         │ true    │ {limit} │         │",
        rule,
        f'│ qq.2         │ true    │ {{<<"x-queue-type">>,longstr,<<"quorum">>}}{27 * " "} │         │',
        f"└──────────────┴─────────┴{arguments}┴─────────┘",
    ]


def test_list_policies_as_a_pretty_table_s165(cli: Cli) -> None:
    shown = cli("list_policies", "--formatter=pretty_table", "--silent")
    assert (
        shown.stdout
        == """\
┌───────┬─────────┬────────────┬──────────┬───────────────────┬──────────┐
│ vhost │ name    │ pattern    │ apply-to │ definition        │ priority │
├───────┼─────────┼────────────┼──────────┼───────────────────┼──────────┤
│ /     │ limited │ ^limited\\. │ queues   │ {"max-length":11} │ 0        │
└───────┴─────────┴────────────┴──────────┴───────────────────┴──────────┘
"""
    )


QUEUES = "limited.cq.1\t0\nlimited.qq.3\t0\nqq.1\t5\nqq.2\t0\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\n" + QUEUES),
        (("-q",), "name\tmessages\n" + QUEUES),
        (("-s",), QUEUES),
        (
            ("--no-table-headers", "--timeout", "5"),
            "Timeout: 5.0 seconds ...\nListing queues for vhost / ...\n" + QUEUES,
        ),
        (("--formatter", "csv"), '"name","messages"\n"limited.cq.1","0"\n"limited.qq.3","0"\n"qq.1","5"\n"qq.2","0"\n'),
    ],
)
def test_list_queues_in_every_dress(cli: Cli, options: tuple[str, ...], expected: str) -> None:
    assert cli("list_queues", *options).stdout == expected
    assert cli(*options, "list_queues").stdout == expected


def test_list_queues_counts_ready_and_unacknowledged_s006(cli: Cli) -> None:
    shown = cli(
        "list_queues", "-q", "name", "messages_ready", "messages_unacknowledged", "message_bytes_ready", "consumers"
    )
    assert shown.stdout.splitlines()[1:] == [
        "limited.cq.1\t0\t0\t0\t1",
        "limited.qq.3\t0\t0\t0\t0",
        "qq.1\t2\t3\t2\t1",
        "qq.2\t0\t0\t0\t0",
    ]


def test_arguments_and_effective_policy_in_table_csv_and_json_s163(cli: Cli) -> None:
    asked = ("list_queues", "-q", "name", "arguments", "effective_policy_definition", "policy")
    last = '[{"x-queue-type","quorum"},{"x-max-length",7}]'
    assert cli(*asked).stdout.splitlines() == [
        "name\targuments\teffective_policy_definition\tpolicy",
        'limited.cq.1\t[{"x-queue-type","classic"}]\t[{<<"max-length">>, 11}]\tlimited',
        'limited.qq.3\t[{"x-queue-type","quorum"}]\t[{<<"max-length">>, 11}]\tlimited',
        f"qq.1\t{last}\t[]\t",
        'qq.2\t[{"x-queue-type","quorum"}]\t[]\t',
    ]
    assert (
        cli(*asked, "--formatter=csv").stdout.splitlines()[3]
        == f'"qq.1","{last.replace(chr(34), chr(34) * 2)}","[]",""'
    )
    assert cli(*asked, "--formatter=json").stdout.splitlines() == [
        "[",
        '{"name":"limited.cq.1","arguments":[["x-queue-type","longstr","classic"]],"effective_policy_definition":{"max-length":11},"policy":"limited"}',
        ',{"name":"limited.qq.3","arguments":[["x-queue-type","longstr","quorum"]],"effective_policy_definition":{"max-length":11},"policy":"limited"}',
        ',{"name":"qq.1","arguments":[["x-queue-type","longstr","quorum"],["x-max-length","long",7]],"effective_policy_definition":{},"policy":""}',
        ',{"name":"qq.2","arguments":[["x-queue-type","longstr","quorum"]],"effective_policy_definition":{},"policy":""}',
        "]",
    ]


COLUMNS = """
    name durable auto_delete arguments policy operator_policy effective_policy_definition pid owner_pid exclusive
    exclusive_consumer_pid exclusive_consumer_tag messages_ready messages_unacknowledged messages
    messages_ready_ram messages_unacknowledged_ram messages_ram messages_persistent message_bytes
    message_bytes_ready message_bytes_unacknowledged message_bytes_ram message_bytes_persistent
    head_message_timestamp disk_reads disk_writes consumers consumer_utilisation memory state type messages_dlx
    message_bytes_dlx single_active_consumer_tag
"""


def test_every_column_of_rabbitmqctl_is_known(cli: Cli) -> None:
    """docs/behaviours/interfaces.md#command-line; what we cannot know is blank."""
    columns = COLUMNS.split()
    header, first, *_ = cli("list_queues", "-q", *columns).stdout.splitlines()
    assert header.split("\t") == columns
    row = dict(zip(columns, first.split("\t"), strict=True))
    assert (row["name"], row["type"], row["state"], row["disk_reads"]) == ("limited.cq.1", "classic", "running", "")


def test_b79_how_long_messages_wait_has_columns(cli: Cli) -> None:
    columns = ("name", "oldest_ready_age_ms", "delivery_wait_avg_ms", "ack_wait_avg_ms")
    assert cli("list_queues", "-q", *columns).stdout.startswith("\t".join(columns))


def test_other_listings(cli: Cli) -> None:
    assert cli("list_exchanges", "name", "type", "arguments", "policy", "internal").stdout == (
        "Listing exchanges for vhost / ...\nname\ttype\targuments\tpolicy\tinternal\n"
        "\tdirect\t[]\t\tfalse\namq.direct\tdirect\t[]\t\tfalse\namq.fanout\tfanout\t[]\t\tfalse\n"
        "amq.headers\theaders\t[]\t\tfalse\namq.match\theaders\t[]\t\tfalse\n"
        "amq.rabbitmq.trace\ttopic\t[]\t\ttrue\namq.rewindmq.event\ttopic\t[]\t\ttrue\namq.topic\ttopic\t[]\t\tfalse\n"
        'ex1\ttopic\t[{"alternate-exchange","amq.fanout"}]\t\tfalse\n'
    )
    assert cli("list_bindings").stdout == (
        "Listing bindings for vhost /...\n"
        "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\n"
        "\texchange\tlimited.cq.1\tqueue\tlimited.cq.1\t[]\n\texchange\tlimited.qq.3\tqueue\tlimited.qq.3\t[]\n"
        '\texchange\tqq.1\tqueue\tqq.1\t[]\n\texchange\tqq.2\tqueue\tqq.2\t[]\nex1\texchange\tqq.1\tqueue\ta.*\t[{"x",1}]\n'
        "ex1\texchange\tamq.fanout\texchange\t#\t[]\n"
    )
    assert cli(
        "list_consumers", "queue_name", "consumer_tag", "ack_required", "prefetch_count", "arguments"
    ).stdout == (
        "Listing consumers in vhost / ...\nqueue_name\tconsumer_tag\tack_required\tprefetch_count\targuments\n"
        'limited.cq.1\tt1\tfalse\t3\t[{"x-priority",5}]\nqq.1\tt0\ttrue\t3\t[]\n'
    )
    assert cli("list_connections", "-s", "user", "vhost", "channels", "state", "protocol").stdout == (
        "guest\t/\t1\trunning\tAMQP 0-9-1\n"
    )
    assert cli("list_channels", "user", "number", "consumer_count", "messages_unacknowledged").stdout == (
        "Listing channels ...\nuser\tnumber\tconsumer_count\tmessages_unacknowledged\nguest\t1\t2\t3\n"
    )
    assert cli("list_vhosts", "name", "tracing", "description").stdout == (
        "Listing vhosts ...\nname\ttracing\tdescription\n/\tfalse\tDefault virtual host\n"
    )


def test_nothing_to_list(cli: Cli) -> None:
    assert cli("add_vhost", "empty").stdout == 'Adding vhost "empty" ...\n'
    assert cli("list_queues", "-p", "empty").stdout == "Timeout: 60.0 seconds ...\nListing queues for vhost empty ...\n"
    assert cli("list_policies", "-p", "empty").stdout == 'Listing policies for vhost "empty" ...\n\n'
    assert cli("list_queues", "-p", "empty", "--formatter=json").stdout == "[\n]\n"
    assert cli("list_queues", "-p", "empty", "--formatter=csv").stdout == ""
    assert cli("delete_vhost", "empty").stdout == 'Deleting vhost "empty" ...\n'


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_s109_who_is_active(cli: Cli, broker: RunningBroker, kind: str) -> None:
    vhost = f"sac-{kind}"
    cli("add_vhost", vhost)
    cli("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url.rstrip("/") + f"/{vhost}")) as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": kind, "x-single-active-consumer": True}
        channel.queue_declare("q", durable=True, arguments=arguments)
        for tag in ("one", "two"):
            channel.basic_consume("q", lambda *_: None, consumer_tag=tag)
        asked = ("list_consumers", "-q", "-p", vhost, "consumer_tag", "active", "activity_status")
        assert cli(*asked).stdout.splitlines() == [
            "consumer_tag\tactive\tactivity_status",
            "one\ttrue\tsingle_active",
            "two\tfalse\twaiting",
        ]
        listed = ("list_queues", "-s", "-p", vhost, "name", "single_active_consumer_tag")
        assert cli(*listed).stdout == "q\tone\n"
        channel.basic_cancel("one")
        assert cli(*listed).stdout == "q\ttwo\n"
        channel.basic_cancel("two")
        assert cli(*listed).stdout == "q\t\n"
        channel.queue_delete("q")
    cli("delete_vhost", vhost)


def test_client_properties_are_a_table(broker: RunningBroker, cli: Cli) -> None:
    """As RabbitMQ's Java client looks for a connection's name in them."""
    named = pika.URLParameters(broker.amqp_url)
    named.client_properties = {"connection_name": "orders-1", "capabilities": {"basic.nack": False}}
    connection = pika.BlockingConnection(named)
    try:
        shown = cli("list_connections", "-q", "pid", "peer_port", "client_properties").stdout
        assert '{"connection_name","orders-1"}' in shown
        assert '{"capabilities",[{' in shown
    finally:
        connection.close()


def test_a_listing_names_a_queue_exactly_unless_a_terminal_would_obey(cli: Cli, broker: RunningBroker) -> None:
    names = ["bell\x07", "csi\x9b31m", "red\x1b[31m"]
    httpx2.put(f"{broker.http_url}/api/vhosts/control", auth=("guest", "guest")).raise_for_status()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url.removesuffix("%2F") + "control")) as connection:
        for name in names:
            connection.channel().queue_declare(name)
    asked = ("list_queues", "-q", "-p", "control", "name")
    assert cli(*asked).stdout.split("\n") == ["name", *names, ""]
    assert cli(*asked, "--formatter=csv").stdout.split("\n") == ['"name"', *(f'"{name}"' for name in names), ""]
    terminal, inside = os.openpty()
    subprocess.run([COMMAND, "--url", broker.http_url, *asked], stdout=inside, check=True, timeout=60)
    assert os.read(terminal, 1000).decode().split("\r\n") == ["name", "bell\\x07", "csi\\x9b31m", "red\\x1b[31m", ""]
    os.close(inside)
    os.close(terminal)
