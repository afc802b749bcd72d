"""The broker itself: start it, and ask how it is."""

from pathlib import Path
from typing import cast

import click

from engine.cli.client import Client
from engine.cli.settings import Settings, common
from engine.cli.values import Value
from engine.config import VERSION, Config

GIGABYTE = 1_000_000_000


@click.command("start")
@click.option("--data", required=True, type=click.Path(file_okay=False, path_type=Path), help="Data directory.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--amqp-port", type=click.IntRange(1, 65535), default=5672, show_default=True)
@click.option("--http-port", type=click.IntRange(1, 65535), default=15672, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 1024),
              help="Of the queue log; fixed when the log is made (default: as it is, 2 for a new one).")  # fmt: skip
@click.option("--node", default="rewindmq@localhost", show_default=True, help="The node's name.")
@click.option("--kafka", metavar="HOST:PORT,...", envvar="REWINDMQ_KAFKA",
              help="Bootstrap servers of a Kafka that is the log; else it is in the data directory.")
@click.option("--kafka-prefix", default="rewindmq", show_default=True, help="Of the names of the topics.")
@click.option("--kafka-replication", type=click.IntRange(1), help="Of new topics (default: 3 if it can be).")
@click.option("--kafka-setting", metavar="KEY=VALUE", multiple=True,
              help="One more setting of the Kafka clients (librdkafka's names), as for security.")  # fmt: skip
@click.option("--node-timeout", type=click.IntRange(1, 600), default=10, show_default=True,
              help="Seconds after which a node that was not heard of is lost; its messages go to others.")  # fmt: skip
def start(
    data: Path, host: str, amqp_port: int, http_port: int, partitions: int | None, node: str, kafka: str | None,
    kafka_prefix: str, kafka_replication: int | None, kafka_setting: tuple[str, ...], node_timeout: int,
) -> None:  # fmt: skip
    """Run a broker in the foreground, until SIGINT or SIGTERM. With --kafka it is a node of many that share a log."""
    from engine.__main__ import run

    settings = []
    for setting in kafka_setting:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.BadParameter(f"'{setting}' is not KEY=VALUE", param_hint="--kafka-setting")
        settings.append((key, value))
    config = Config(
        data=data.absolute(), host=host, amqp_port=amqp_port, http_port=http_port, partitions=partitions, node=node,
        kafka=kafka, kafka_prefix=kafka_prefix, kafka_replication=kafka_replication, kafka_settings=tuple(settings),
        node_timeout_ms=node_timeout * 1000,
    )  # fmt: skip
    code = run(config)  # says by itself, in one line, what prevents a start
    if code:
        raise click.exceptions.Exit(code)


@click.command("ping")
@common
def ping(settings: Settings) -> None:
    """Is the broker there, and does it let us in?"""
    client = settings.client()
    settings.banner(f"Will ping {client.address}. Timeout: {int(settings.seconds * 1000)} ms.")
    client.get_one("whoami")
    click.echo("Ping succeeded")


@click.command("version")
def version() -> None:
    """Print the version of this program."""
    click.echo(VERSION)


@click.command("status")
@common
def status(settings: Settings) -> None:
    """How the broker is: memory, disk, alarms, totals, listeners."""
    client = settings.client()
    overview, node = client.get_one("overview"), client.get("nodes")[0]
    if settings.formatter in ("json", "csv"):
        report = facts(overview, node)
        settings.show(list(report), [report])
        return
    settings.banner(f"Status of node {overview['node']} ...")
    for line in status_lines(client, overview, node):
        click.echo(line)


def facts(overview: dict[str, object], node: dict[str, object]) -> dict[str, Value]:
    return {
        "pid": int(str(node["os_pid"])), "uptime": cast(int, node["uptime"]) // 1000,
        "product_name": overview["product_name"], "product_version": overview["product_version"],
        "rabbitmq_version": overview["rabbitmq_version"], "node": overview["node"],
        "data_directory": node["db_dir"], "alarms": alarms(overview), "memory": {"total": {"rss": node["mem_used"]}},
        "disk_free": node["disk_free"], "file_descriptors": {
            "total_used": node["fd_used"], "total_limit": node["fd_total"], "sockets_used": node["sockets_used"],
        },
        "totals": overview["object_totals"], "listeners": overview["listeners"],
    }  # fmt: skip


def alarms(overview: dict[str, object]) -> list[object]:
    blocked = overview["publishing_blocked"]
    return [blocked] if blocked else []


def status_lines(client: Client, overview: dict[str, object], node: dict[str, object]) -> list[str]:
    totals = cast(dict[str, int], overview["object_totals"])
    listeners = cast(list[dict[str, object]], overview["listeners"])
    log = cast(list[dict[str, object]], overview["log"])
    purposes = {"amqp": "AMQP 0-9-1", "http": "HTTP API"}
    return [
        "Runtime", "",
        f"OS PID: {node['os_pid']}",
        f"Uptime (seconds): {cast(int, node['uptime']) // 1000}",
        f"RewindMQ version: {overview['product_version']}",
        f"RabbitMQ version: {overview['rabbitmq_version']} (whose protocol and semantics these are)",
        f"Node name: {overview['node']}", "",
        "Data directory", "",
        f"Node data directory: {node['db_dir']}",
        *(f"Log: {each['partition']}, {each['next_offset']} events, durable up to {each['durable_offset']}"
          for each in log), "",
        "Alarms", "",
        *([str(alarm) for alarm in alarms(overview)] or ["(none)"]), "",
        "Memory", "",
        f"Total memory used: {cast(int, node['mem_used']) / GIGABYTE:.4f} gb", "",
        "File Descriptors", "",
        f"Total: {node['fd_used']}, limit: {node['fd_total']}", "",
        "Free Disk Space", "",
        f"Free disk space: {cast(int, node['disk_free']) / GIGABYTE:.4f} gb", "",
        "Totals", "",
        f"Connection count: {totals['connections']}",
        f"Queue count: {totals['queues']}",
        f"Virtual host count: {len(client.get('vhosts'))}", "",
        "Listeners", "",
        *(f"Interface: {each['ip_address']}, port: {each['port']}, protocol: {each['protocol']}, purpose:"
          f" {purposes.get(str(each['protocol']), '')}" for each in listeners),
    ]  # fmt: skip


COMMANDS = (start, ping, version, status)
