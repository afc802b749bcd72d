"""Commands that ask the broker itself: ping, version, status, cluster_status."""

from typing import cast

import click

from rewindmq import __version__
from rewindmq.engine.cli.client import Client, Json
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command
from rewindmq.engine.cli.values import Value

GIGABYTE = 1_000_000_000
PURPOSES = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTP API over TLS (HTTPS)",
    "http/prometheus": "Prometheus exporter API over HTTP",
}


@command("ping")
def ping(settings: CliSettings) -> None:
    """Check that the broker answers and that the login works."""
    client = settings.client()
    settings.banner(f"Will ping {client.address}. Timeout: {int(settings.seconds * 1000)} ms.")
    client.get_one("whoami")
    click.echo("Ping succeeded")


@command("version", common=False)
def version() -> None:
    """Print the version of this program."""
    click.echo(__version__)


@command("status")
def status(settings: CliSettings) -> None:
    """Show memory, disk, alarms, totals and listeners of the broker."""
    client = settings.client()
    overview = client.get_one("overview")
    node = client.get_one("nodes", str(overview["node"]))
    if settings.formatter in ("json", "csv"):
        report = facts(overview, node)
        settings.show([report])
        return
    settings.banner(f"Status of node {overview['node']} ...")
    for line in status_lines(client, overview, node):
        click.echo(line)


def facts(overview: dict[str, object], node: dict[str, object]) -> dict[str, Value]:
    """Return the status as one object, for programs."""
    return {
        "pid": int(str(node["os_pid"])),
        "uptime": cast(int, node["uptime"]) // 1000,
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "machine_version": overview["machine_version"],
        "known_machine_version": overview["known_machine_version"],
        "build": overview["build"],
        "rabbitmq_version": overview["rabbitmq_version"],
        "node": overview["node"],
        "data_directory": node["db_dir"],
        "fork": overview["fork"],
        "clock": node["clock"],
        "expired_bodies": node["expired_bodies"],
        "alarms": alarms(overview),
        "memory": {"total": {"rss": node["mem_used"]}},
        "vm_memory_limit": node["mem_limit"],
        "disk_free": node["disk_free"],
        "disk_free_limit": node["disk_free_limit"],
        "history": overview.get("history"),
        "standby": overview.get("standby"),
        "file_descriptors": {
            "total_used": node["fd_used"],
            "total_limit": node["fd_total"],
            "sockets_used": node["sockets_used"],
        },
        "totals": overview["object_totals"],
        "listeners": overview["listeners"],
    }


def clock_line(clock: Json) -> str:
    """Return the difference between the time in the log and the wall clock."""
    difference_ms = cast(int, clock["difference_ms"])
    return f"Time in the log less wall clock: {difference_ms} ms (wall clock {clock['wall_time']})"


def fork_lines(fork: Json | None) -> list[str]:
    """One line that names the moment at which the history branched from another one; no line for other histories."""
    if fork is None:
        return []
    source = f" of {fork['source']}" if fork["source"] else ""
    return [f"Fork{source} as of {fork['moment']}, made {fork['made']}: branched from {str(fork['parent'])[:16]}..."]


def bodies_lines(bodies: Json) -> list[str]:
    """Return lines about the time for which bodies are kept, and about the days held back.

    Empty if --keep-bodies is not set and no day has expired."""
    keep_days, expired = bodies["keep_days"], cast(int, bodies["expired_days"])
    if keep_days is None and not expired:
        return []
    last = f", the last one {bodies['last_expired']}" if expired else ""
    return [
        f"Kept: {'for ever' if keep_days is None else f'{keep_days} days'}; expired: {expired} days{last}",
        *(
            f"Held back: {each['day']}, by queue '{each['queue']}' of '{each['vhost']}': {each['messages']} messages"
            for each in cast(list[Json], bodies["held"])
        ),
        *([f"Problem: {bodies['problem']}"] if bodies["problem"] else []),
    ]


def alarms(overview: dict[str, object]) -> list[str]:
    """Return the alarms in the words of RabbitMQ's `status`, each with its reason."""
    names = {"memory": "Memory", "disk": "Free disk space"}
    return [
        f"{names[str(each['resource'])]} alarm on node {each['node']}: {each['reason']}"
        for each in cast(list[dict[str, object]], overview["alarms"])
    ]


def history_lines(history: Json) -> list[str]:
    """Return lines about the size of the history and the state of its archive. An older broker says neither."""
    from rewindmq.engine.host.durations import in_words

    size, days = cast(int | None, history.get("local_bytes")), cast(float | None, history.get("disk_full_in_days"))
    lines = [] if size is None else [f"On this disk: {gigabytes(size)}"]
    lines += kafka_lines(history)
    if days is not None:
        lines.append(f"Disk full in {days:g} days, by the growth of the last hours")
    lines += trim_lines(cast(Json | None, history.get("trims")))
    archive = cast(Json | None, history.get("archive"))
    if archive is None:
        return [*lines, "Archive: (none)"]
    lines.append(f"Archive: {archive['url']}")
    if archive["archived_until"] is None:
        lines.append("Archived until: (not known yet)")
    else:
        records, seconds = cast(int, archive["lag_records"]), int(cast(float, archive["lag_seconds"]))
        lines.append(f"In the archive: {gigabytes(archive['archived_bytes'])}")
        lines.append(f"Archived until: {archive['archived_until']}")
        oldest = f", the oldest {in_words(seconds * 1_000)} old" if records else ""
        lines.append(f"Not archived: {records} records{oldest}")
    if archive.get("stays"):
        lines.append(f"Segments that were due stay here: {archive['stays']}")
    if archive.get("retention"):
        lines.append(f"Kafka's retention: {archive['retention']}")
    if archive["error"] is not None:
        lines.append(f"Archiving fails: {archive['error']}")
    return lines


def standby_lines(standby: Json) -> list[str]:
    """Return lines about followers and the leader of this node; none where there is neither."""
    followers, follows = cast(list[Json], standby.get("followers") or []), cast(Json | None, standby.get("follows"))
    waits = standby.get("confirm_after") == "follower"
    if not followers and follows is None and not waits:
        return []
    lines = []
    if follows is not None:
        state = "connected" if follows["connected"] else f"not connected: {follows['problem'] or 'it is being asked'}"
        lines.append(f"Follows {follows['leader']}: {state}")
        lines.append(f"Behind the leader: {follows['lag_records']} records, {follows['lag_seconds']} s")
    if waits:
        waiting = cast(float, standby["waiting_seconds"])
        since = f", for {waiting:g} s" if waiting else ""
        lines.append(f"Confirms wait for followers: {standby['unacknowledged_records']} records wait now{since}")
    if waits and not followers:
        lines.append("No follower has joined yet: nothing is confirmed")
    for each in followers:
        state = "connected" if each["connected"] else "away"
        known = each["lag_records"] is not None
        behind = (
            f"{each['lag_records']} records, {each['lag_seconds']} s behind" if known else "nothing acknowledged yet"
        )
        lines.append(f"Follower {each['name']}: {state}, {behind}")
    return lines


def kafka_lines(history: Json) -> list[str]:
    """Return a line about what Kafka has of the history, where it is there and known."""
    size, growth = cast(int | None, history.get("kafka_bytes")), cast(int | None, history.get("growth_bytes_per_day"))
    if size is None:
        return []
    grows = "" if growth is None else f", growing by {gigabytes(growth)} a day"
    return [f"In Kafka: {gigabytes(size)} of this node's partitions{grows}; the room on Kafka's disks is not known"]


def trim_lines(trims: Json | None) -> list[str]:
    """Return lines about the end of the history: how much is kept, where each partition begins, why older parts
    stay."""
    from rewindmq.engine.host.durations import in_words

    if trims is None:
        return []
    lines = []
    if trims["keep_seconds"] is not None:
        before = f", what is older than {trims['before']} goes" if trims["before"] else ""
        lines.append(f"Kept history: {in_words(cast(int, trims['keep_seconds']) * 1_000)}{before}")
    for floor in cast(list[Json], trims["floors"]):
        found = f", {len(cast(list[str], floor['findings']))} findings" if floor["findings"] else ""
        went = f"{floor['until']} and before was trimmed at {floor['trimmed']}{found}"
        lines.append(f"History of {floor['partition']} begins at offset {floor['offset']}: what was of {went}")
    lines += [f"Not trimmed: {name}: {why}" for name, why in cast(dict[str, str], trims["stays"]).items()]
    return lines if trims["error"] is None else [*lines, f"Trimming fails: {trims['error']}"]


def version_lines(overview: Json) -> list[str]:
    """Return lines about the machine version of the history, and about a newer one that the program knows."""
    follows, known = overview["machine_version"], overview["known_machine_version"]
    due = [] if follows == known else [f"This program knows machine version {known}: run `rewindmq finalize_upgrade`"]
    return [f"Machine version of the history: {follows}", *due]


def in_sections(sections: dict[str, list[str]]) -> list[str]:
    """Return lines below headings, as rabbitmqctl prints them. A section without lines is left out."""
    lines = [line for title, found in sections.items() if found for line in (title, "", *found, "")]
    return lines[:-1]


def gigabytes(size: object) -> str:
    """Return a size as rabbitmqctl prints it."""
    return f"{cast(int, size) / GIGABYTE:.4f} gb"


def listener_line(listener: Json) -> str:
    """Return a listener, for people."""
    purpose = PURPOSES.get(str(listener["protocol"]), "")
    at = f"Interface: {listener['ip_address']}, port: {listener['port']}"
    return f"{at}, protocol: {listener['protocol']}, purpose: {purpose}"


def status_lines(client: Client, overview: Json, node: Json) -> list[str]:
    """Return the status in lines, for people, with rabbitmqctl's headings."""
    totals, log = cast(dict[str, int], overview["object_totals"]), cast(list[Json], overview["log"])
    sections = {
        "Runtime": [
            f"OS PID: {node['os_pid']}",
            f"Uptime (seconds): {cast(int, node['uptime']) // 1000}",
            f"RewindMQ version: {overview['product_version']}",
            *version_lines(overview),
            f"Build: {node['build']}",
            f"RabbitMQ version: {overview['rabbitmq_version']} (whose protocol and semantics these are)",
            f"Node name: {overview['node']}",
        ],
        "Data directory": [
            f"Node data directory: {node['db_dir']}",
            *(
                f"Log: {each['partition']}, {each['next_offset']} events, durable up to {each['durable_offset']}"
                for each in log
            ),
            *fork_lines(cast(Json | None, overview["fork"])),
        ],
        "Clock": [clock_line(cast(Json, node["clock"]))],
        "Bodies": bodies_lines(cast(Json, node["expired_bodies"])),
        "Alarms": alarms(overview) or ["(none)"],
        "Memory": [
            f"Total memory used: {gigabytes(node['mem_used'])}",
            f"Memory high watermark: {gigabytes(node['mem_limit'])}",
        ],
        "File Descriptors": [f"Total: {node['fd_used']}, limit: {node['fd_total']}"],
        "Free Disk Space": [
            f"Low free disk space watermark: {gigabytes(node['disk_free_limit'])}",
            f"Free disk space: {gigabytes(node['disk_free'])}",
        ],
        "History": history_lines(cast(Json, overview.get("history") or {})),
        "Second machine": standby_lines(cast(Json, overview.get("standby") or {})),
        "Totals": [
            f"Connection count: {totals['connections']}",
            f"Queue count: {totals['queues']}",
            f"Virtual host count: {len(client.get('vhosts'))}",
        ],
        "Listeners": [listener_line(each) for each in cast(list[Json], overview["listeners"])],
    }
    return in_sections(sections)


@command("cluster_status")
def cluster_status(settings: CliSettings) -> None:
    """List the nodes on the log, and the members of each partition."""
    client = settings.client()
    overview, nodes = client.get_one("overview"), client.get("nodes")
    if settings.formatter in ("json", "csv"):
        report = cluster_facts(overview, nodes)
        settings.show([report])
        return
    settings.banner(f"Cluster status of node {overview['node']} ...")
    for line in cluster_lines(overview, nodes):
        click.echo(line)


def cluster_facts(overview: Json, nodes: list[Json]) -> dict[str, Value]:
    """Return the status of the cluster as one object, for programs."""
    names = [node["name"] for node in nodes]
    return {
        "cluster_name": overview["cluster_name"],
        "disk_nodes": names,
        "running_nodes": [node["name"] for node in nodes if node["running"]],
        "versions": {str(node["name"]): node_version(node) for node in nodes},
        "alarms": alarms(overview),
        "partitions": {},
        "listeners": {str(node["name"]): node["address"] for node in nodes},
        "log": overview["log"],
    }


def node_version(node: Json) -> object:
    """Return the version of RewindMQ on a node."""
    return cast(list[Json], node["applications"])[0]["version"]


def cluster_lines(overview: Json, nodes: list[Json]) -> list[str]:
    """Return the status of the cluster in lines, for people, with rabbitmqctl's headings."""
    log = cast(list[dict[str, list[str]]], overview["log"])
    sections = {
        "Basics": [f"Cluster name: {overview['cluster_name']}"],
        "Disk Nodes": [str(node["name"]) for node in nodes],
        "Running Nodes": [str(node["name"]) for node in nodes if node["running"]],
        "Versions": [f"{node['name']}: RewindMQ {node_version(node)}" for node in nodes],
        "Alarms": alarms(overview) or ["(none)"],
        "Network Partitions": ["(none)"],
        "Listeners": [
            f"Node: {node['name']}, address: {node['address']}, protocol: amqp, purpose: AMQP 0-9-1" for node in nodes
        ],
        "Log": [
            f"{each['partition']}: leader {each['leader'] or '(none)'}, members {', '.join(each['members'])}, online"
            f" {', '.join(each['online'])}"
            for each in log
        ],
    }
    return in_sections(sections)


COMMANDS = (ping, version, status, cluster_status)
