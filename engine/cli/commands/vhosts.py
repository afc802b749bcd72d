"""Virtual hosts: made, described and deleted."""

import click

from rewindmq.engine.cli.client import Client, Json, Refused
from rewindmq.engine.cli.commands.policies import no_such_vhost
from rewindmq.engine.cli.exits import DATA, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, common

QUEUE_TYPES = ("quorum", "classic", "stream")
DESCRIBED = (
    click.option("-d", "--description", help="What it is for."),
    click.option("--tags", metavar="TAG,TAG", help="Tags, separated by commas."),
    click.option(
        "--default-queue-type",
        metavar="TYPE",
        help="Of queues that are declared without a type: quorum, classic or stream.",
    ),
)


def described(command: "click.decorators.FC") -> "click.decorators.FC":
    for option in reversed(DESCRIBED):
        command = option(command)
    return command


def vhost_of(client: Client, name: str) -> Json:
    try:
        return client.get_one("vhosts", name)
    except Refused as refused:
        raise no_such_vhost(name) if refused.status == 404 else refused from None


def known_type(default_queue_type: str | None) -> None:
    if default_queue_type not in (None, *QUEUE_TYPES):
        raise CliError(
            DATA,
            f"(argument validation): Bad argument: Default queue type must be one of:"
            f" {', '.join(QUEUE_TYPES)}. Provided: {default_queue_type}",
        )


@click.command("add_vhost")
@described
@click.argument("name")
@common
def add_vhost(
    settings: Settings, name: str, description: str | None, tags: str | None, default_queue_type: str | None
) -> None:
    """Create a virtual host. One that exists stays as it is."""
    if not name:
        raise CliError(DATA, "(argument validation): Bad argument: vhost name cannot be an empty string")
    known_type(default_queue_type)
    settings.banner(f'Adding vhost "{name}" ...')
    client = settings.client()
    if not client.exists("vhosts", name):
        content = {"description": description or "", "tags": tags or "", "default_queue_type": default_queue_type}
        client.put("vhosts", name, content=content)


@click.command("update_vhost_metadata")
@described
@click.argument("name")
@common
def update_vhost_metadata(
    settings: Settings, name: str, description: str | None, tags: str | None, default_queue_type: str | None
) -> None:
    """Change the description, tags or default queue type of a virtual host."""
    asked = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    changes: Json = {key: value for key, value in asked.items() if value is not None}
    if not changes:
        raise CliError(USAGE, "(argument validation): not enough arguments: give a description, tags or a type")
    known_type(default_queue_type)
    settings.banner(f'Updating metadata of vhost "{name}" ...')
    client = settings.client()
    client.put("vhosts", name, content=metadata_of(client, name) | changes)


@click.command("set_vhost_tags")
@click.argument("name")
@click.argument("tag", nargs=-1)
@common
def set_vhost_tags(settings: Settings, name: str, tag: tuple[str, ...]) -> None:
    """Set the tags of a virtual host; without TAG, take them all away."""
    settings.banner(f'Setting tags for virtual host "{name}" to [{", ".join(tag)}] ...')
    client = settings.client()
    client.put("vhosts", name, content=metadata_of(client, name) | {"tags": list(tag)})


def metadata_of(client: Client, name: str) -> Json:
    found = vhost_of(client, name)["metadata"]
    assert isinstance(found, dict), "the API's metadata are an object"
    return found


@click.command("delete_vhost")
@click.argument("name")
@common
def delete_vhost(settings: Settings, name: str) -> None:
    """Delete a virtual host, and everything in it."""
    settings.banner(f'Deleting vhost "{name}" ...')
    try:
        settings.client().delete("vhosts", name)
    except Refused as refused:
        raise no_such_vhost(name) if refused.status == 404 else refused from None


@click.command("restart_vhost")
@common
def restart_vhost(settings: Settings) -> None:
    """Is the virtual host running? One that exists always is."""
    client = settings.client()
    node = client.get_one("overview")["node"]
    settings.banner(f"Trying to restart vhost '{settings.home}' on node '{node}' ...")
    vhost_of(client, settings.home)
    click.echo(f"Vhost '{settings.home}' is already running on node '{node}'")


@click.command("trace_on")
@common
def trace_on(settings: Settings) -> None:
    """Copy what is published and delivered in a virtual host to amq.rabbitmq.trace, until the node stops."""
    settings.banner(f'Starting tracing for vhost "{settings.home}" ...')
    trace(settings, True)
    settings.banner(f"Trace enabled for vhost {settings.home}")


@click.command("trace_off")
@common
def trace_off(settings: Settings) -> None:
    """End what trace_on began."""
    settings.banner(f'Stopping tracing for vhost "{settings.home}" ...')
    trace(settings, False)
    settings.banner(f"Trace disabled for vhost {settings.home}")


def trace(settings: Settings, on: bool) -> None:
    client = settings.client()
    client.put("vhosts", settings.home, content=metadata_of(client, settings.home) | {"tracing": on})


COMMANDS = (
    add_vhost,
    update_vhost_metadata,
    set_vhost_tags,
    delete_vhost,
    restart_vhost,
    trace_on,
    trace_off,
)
