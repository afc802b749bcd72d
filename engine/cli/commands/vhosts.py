"""Virtual hosts: create, describe, trace, delete."""

import click

from rewindmq.engine.cli.client import Client, Json
from rewindmq.engine.cli.exits import DATA, USAGE, CliError
from rewindmq.engine.cli.lookups import find_vhost, missing, no_such_vhost
from rewindmq.engine.cli.settings import Settings, with_settings

QUEUE_TYPES = ("quorum", "classic", "stream")
DESCRIBED = (
    click.option("-d", "--description", help="A text that describes the virtual host."),
    click.option("--tags", metavar="TAG,TAG", help="Tags, separated by commas."),
    click.option(
        "--default-queue-type",
        metavar="TYPE",
        help="Type of queues that are declared without one: quorum, classic or stream.",
    ),
)


def with_metadata(command: "click.decorators.FC") -> "click.decorators.FC":
    """A decorator that adds the options of a virtual host's metadata."""
    for option in reversed(DESCRIBED):
        command = option(command)
    return command


def require_known_type(default_queue_type: str | None) -> None:
    """CliError for a queue type that does not exist."""
    if default_queue_type not in (None, *QUEUE_TYPES):
        raise CliError(
            DATA,
            f"(argument validation): Bad argument: Default queue type must be one of:"
            f" {', '.join(QUEUE_TYPES)}. Provided: {default_queue_type}",
        )


@click.command("add_vhost")
@with_metadata
@click.argument("name")
@with_settings
def add_vhost(
    settings: Settings, name: str, description: str | None, tags: str | None, default_queue_type: str | None
) -> None:
    """Create a virtual host. An existing virtual host stays as it is."""
    if not name:
        raise CliError(DATA, "(argument validation): Bad argument: vhost name cannot be an empty string")
    require_known_type(default_queue_type)
    settings.banner(f'Adding vhost "{name}" ...')
    client = settings.client()
    if not client.exists("vhosts", name):
        content = {"description": description or "", "tags": tags or "", "default_queue_type": default_queue_type}
        client.put("vhosts", name, content=content)


@click.command("update_vhost_metadata")
@with_metadata
@click.argument("name")
@with_settings
def update_vhost_metadata(
    settings: Settings, name: str, description: str | None, tags: str | None, default_queue_type: str | None
) -> None:
    """Change the description, tags or default queue type of a virtual host."""
    asked = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    changes: Json = {key: value for key, value in asked.items() if value is not None}
    if not changes:
        raise CliError(USAGE, "(argument validation): not enough arguments: give a description, tags or a type")
    require_known_type(default_queue_type)
    settings.banner(f'Updating metadata of vhost "{name}" ...')
    client = settings.client()
    client.put("vhosts", name, content=metadata_of(client, name) | changes)


@click.command("set_vhost_tags")
@click.argument("name")
@click.argument("tag", nargs=-1)
@with_settings
def set_vhost_tags(settings: Settings, name: str, tag: tuple[str, ...]) -> None:
    """Set the tags of a virtual host. Without TAG all tags are removed."""
    settings.banner(f'Setting tags for virtual host "{name}" to [{", ".join(tag)}] ...')
    client = settings.client()
    client.put("vhosts", name, content=metadata_of(client, name) | {"tags": list(tag)})


def metadata_of(client: Client, name: str) -> Json:
    """The metadata of a virtual host. Raises the error of a missing virtual host."""
    found = find_vhost(client, name)["metadata"]
    assert isinstance(found, dict), "the API's metadata are an object"
    return found


@click.command("delete_vhost")
@click.argument("name")
@with_settings
def delete_vhost(settings: Settings, name: str) -> None:
    """Delete a virtual host with its queues and exchanges."""
    settings.banner(f'Deleting vhost "{name}" ...')
    with missing(no_such_vhost(name)):
        settings.client().delete("vhosts", name)


@click.command("restart_vhost")
@with_settings
def restart_vhost(settings: Settings) -> None:
    """Check that a virtual host exists: an existing one always runs."""
    client = settings.client()
    node = client.get_one("overview")["node"]
    settings.banner(f"Trying to restart vhost '{settings.vhost_name}' on node '{node}' ...")
    find_vhost(client, settings.vhost_name)
    click.echo(f"Vhost '{settings.vhost_name}' is already running on node '{node}'")


@click.command("trace_on")
@with_settings
def trace_on(settings: Settings) -> None:
    """Copy all published and delivered messages to amq.rabbitmq.trace.

    Holds for a virtual host, until trace_off or until the node stops."""
    settings.banner(f'Starting tracing for vhost "{settings.vhost_name}" ...')
    trace(settings, True)
    settings.banner(f"Trace enabled for vhost {settings.vhost_name}")


@click.command("trace_off")
@with_settings
def trace_off(settings: Settings) -> None:
    """Stop the copies of trace_on."""
    settings.banner(f'Stopping tracing for vhost "{settings.vhost_name}" ...')
    trace(settings, False)
    settings.banner(f"Trace disabled for vhost {settings.vhost_name}")


def trace(settings: Settings, on: bool) -> None:
    """Switches tracing in the virtual host on or off."""
    client = settings.client()
    client.put("vhosts", settings.vhost_name, content=metadata_of(client, settings.vhost_name) | {"tracing": on})


COMMANDS = (
    add_vhost,
    update_vhost_metadata,
    set_vhost_tags,
    delete_vhost,
    restart_vhost,
    trace_on,
    trace_off,
)
