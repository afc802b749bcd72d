"""Users, their passwords, tags and permissions."""

import sys

import click

from rewindmq.engine.cli.client import Json, Refused
from rewindmq.engine.cli.exits import DATA, SOFTWARE, CliError
from rewindmq.engine.cli.lookups import find_user, missing, no_such_user, no_such_vhost
from rewindmq.engine.cli.settings import Settings, with_settings


def password_from(given: str | None) -> str:
    """A password from the command line, a prompt on a terminal, or the first line of standard input. CliError."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CliError(DATA, "Password is not provided via argument or stdin")
    return line


def grant(settings: Settings, kind: str, name: str, content: Json) -> None:
    """Sets permissions of a user in the virtual host. `kind`: permissions or topic-permissions."""
    client = settings.client()
    try:
        client.put(kind, settings.vhost_name, name, content=content)
    except Refused as refused:
        if refused.reason != "vhost_or_user_not_found":
            raise
        find_user(client, name)
        raise no_such_vhost(settings.vhost_name) from None


def revoke(settings: Settings, kind: str, name: str, *exchange: str) -> None:
    """Removes permissions of a user in the virtual host. A user without permissions is no error."""
    client = settings.client()
    try:
        client.delete(kind, settings.vhost_name, name, *exchange)
    except Refused as refused:
        if refused.status != 404:
            raise
        find_user(client, name)
        if not client.exists("vhosts", settings.vhost_name):
            raise no_such_vhost(settings.vhost_name) from None


@click.command("add_user")
@click.option(
    "--pre-hashed-password",
    is_flag=True,
    help="PASSWORD is a hash, as hash_password prints it (base64 of a salt of 4 bytes and SHA-256).",
)
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@with_settings
def add_user(settings: Settings, name: str, secret: str | None, pre_hashed_password: bool) -> None:
    """Create a user, without permissions.

    Without PASSWORD the password is read from standard input.

    \b
    Examples:
      rewindmq add_user alice
      rewindmq set_permissions alice ".*" ".*" ".*"
    """
    if not name:
        raise CliError(DATA, "(argument validation): Bad argument: user cannot be an empty string")
    settings.banner(f'Adding user "{name}" ...')
    password = password_from(secret)
    client = settings.client()
    if client.exists("users", name):
        raise CliError(SOFTWARE, f'User "{name}" already exists')
    client.put("users", name, content={"password_hash" if pre_hashed_password else "password": password, "tags": []})
    settings.banner(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rewindmq"
        " set_permissions --help' to learn more."
    )


@click.command("delete_user")
@click.argument("name")
@with_settings
def delete_user(settings: Settings, name: str) -> None:
    """Remove a user with its permissions."""
    settings.banner(f'Deleting user "{name}" ...')
    with missing(no_such_user(name)):
        settings.client().delete("users", name)


@click.command("change_password")
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@with_settings
def change_password(settings: Settings, name: str, secret: str | None) -> None:
    """Change a user's password. Without PASSWORD it is read from standard input."""
    settings.banner(f'Changing password for user "{name}" ...')
    password = password_from(secret)
    client = settings.client()
    client.put("users", name, content={"password": password, "tags": find_user(client, name)["tags"]})


@click.command("clear_password")
@click.argument("name")
@with_settings
def clear_password(settings: Settings, name: str) -> None:
    """Remove the password of a user, who can then not log in with one."""
    settings.banner(f'Clearing password for user "{name}" ...')
    client = settings.client()
    client.put("users", name, content={"tags": find_user(client, name)["tags"]})


@click.command("hash_password")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@with_settings
def hash_password(settings: Settings, secret: str | None) -> None:
    """Print the hash of a password, in RabbitMQ's format.

    `add_user --pre-hashed-password` and definitions take it."""
    from rewindmq.engine.broker.passwords import rabbitmq_hash

    if secret == "":
        raise CliError(DATA, "(argument validation): Bad argument: password cannot be an empty string")
    settings.banner("Will hash provided password")
    click.echo(rabbitmq_hash(password_from(secret)))


@click.command("authenticate_user")
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@with_settings
def authenticate_user(settings: Settings, name: str, secret: str | None) -> None:
    """Check the password of a user."""
    settings.banner(f'Authenticating user "{name}" ...')
    settings.update(user=name, password=password_from(secret))
    try:
        settings.client().get_one("whoami")
    except Refused:  # right password, but no management tag: that was not the question
        settings.banner("Success")
    except CliError as error:
        if error.code == DATA:
            raise CliError(DATA, f'failed to authenticate user "{name}": invalid credentials') from None
        raise
    else:
        settings.banner("Success")


@click.command("set_user_tags")
@click.argument("name")
@click.argument("tag", nargs=-1)
@with_settings
def set_user_tags(settings: Settings, name: str, tag: tuple[str, ...]) -> None:
    """Set the tags of a user.

    Tags: administrator, monitoring, policymaker, management. Without TAG all tags are removed."""
    settings.banner(f'Setting tags for user "{name}" to [{", ".join(tag)}] ...')
    client = settings.client()
    find_user(client, name)
    client.put("users", name, content={"tags": list(tag), "keep_password": True})


@click.command("list_users")
@with_settings
def list_users(settings: Settings) -> None:
    """List the users and their tags."""
    settings.banner("Listing users ...")
    rows = [{"user": user["name"], "tags": user["tags"]} for user in settings.client().get("users")]
    settings.show(("user", "tags"), rows)


@click.command("set_permissions")
@click.argument("name")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@with_settings
def set_permissions(settings: Settings, name: str, configure: str, write: str, read: str) -> None:
    """Set the permissions of a user in a virtual host.

    CONFIGURE, WRITE and READ are regular expressions of queue and exchange names.

    \b
    Example:
      rewindmq set_permissions -p / alice '^orders' '.*' '.*'
    """
    settings.banner(f'Setting permissions for user "{name}" in vhost "{settings.vhost_name}" ...')
    grant(settings, "permissions", name, {"configure": configure, "write": write, "read": read})


@click.command("set_permissions_globally")
@click.argument("name")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@with_settings
def set_permissions_globally(settings: Settings, name: str, configure: str, write: str, read: str) -> None:
    """Set the permissions of a user in all virtual hosts.

    CONFIGURE, WRITE and READ are regular expressions of queue and exchange names."""
    settings.banner(f'Setting permissions for user "{name}" in all virtual hosts ...')
    client = settings.client()
    find_user(client, name)
    content = {"configure": configure, "write": write, "read": read}
    for vhost in client.get("vhosts"):
        client.put("permissions", str(vhost["name"]), name, content=content)


@click.command("clear_permissions")
@click.argument("name")
@with_settings
def clear_permissions(settings: Settings, name: str) -> None:
    """Remove the permissions of a user in a virtual host."""
    settings.banner(f'Clearing permissions for user "{name}" in vhost "{settings.vhost_name}" ...')
    revoke(settings, "permissions", name)


@click.command("list_permissions")
@with_settings
def list_permissions(settings: Settings) -> None:
    """List the permissions in a virtual host."""
    settings.banner(f'Listing permissions for vhost "{settings.vhost_name}" ...')
    with missing(no_such_vhost(settings.vhost_name)):
        rows = settings.client().get("vhosts", settings.vhost_name, "permissions")
    settings.show(("user", "configure", "write", "read"), rows)


@click.command("list_user_permissions")
@click.argument("name")
@with_settings
def list_user_permissions(settings: Settings, name: str) -> None:
    """List the permissions of a user in all virtual hosts."""
    settings.banner(f'Listing permissions for user "{name}" ...')
    client = settings.client()
    find_user(client, name)
    settings.show(("vhost", "configure", "write", "read"), client.get("users", name, "permissions"))


@click.command("set_topic_permissions")
@click.argument("name")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
@with_settings
def set_topic_permissions(settings: Settings, name: str, exchange: str, write: str, read: str) -> None:
    """Set the routing keys that a user may use on a topic exchange.

    WRITE and READ are regular expressions of routing keys, for publishing and for binding."""
    settings.banner(f'Setting topic permissions on "{exchange}" for user "{name}" in vhost "{settings.vhost_name}" ...')
    grant(settings, "topic-permissions", name, {"exchange": exchange, "write": write, "read": read})


@click.command("clear_topic_permissions")
@click.argument("name")
@click.argument("exchange", required=False)
@with_settings
def clear_topic_permissions(settings: Settings, name: str, exchange: str | None) -> None:
    """Remove the topic permissions of a user in a virtual host.

    Without EXCHANGE for all exchanges."""
    on = "" if exchange is None else f' on "{exchange}"'
    settings.banner(f'Clearing topic permissions{on} for user "{name}" in vhost "{settings.vhost_name}" ...')
    revoke(settings, "topic-permissions", name, *([] if exchange is None else [exchange]))


@click.command("list_topic_permissions")
@with_settings
def list_topic_permissions(settings: Settings) -> None:
    """List the topic permissions in a virtual host."""
    settings.banner(f'Listing topic permissions for vhost "{settings.vhost_name}" ...')
    with missing(no_such_vhost(settings.vhost_name)):
        rows = settings.client().get("vhosts", settings.vhost_name, "topic-permissions")
    settings.show(("user", "exchange", "write", "read"), rows)


@click.command("list_user_topic_permissions")
@click.argument("name")
@with_settings
def list_user_topic_permissions(settings: Settings, name: str) -> None:
    """List the topic permissions of a user in all virtual hosts.

    Without headers, as rabbitmqctl prints them."""
    settings.banner(f'Listing topic permissions for user "{name}" ...')
    client = settings.client()
    find_user(client, name)
    settings.update(no_table_headers=True)
    settings.show(("vhost", "exchange", "write", "read"), client.get("users", name, "topic-permissions"))


COMMANDS = (
    add_user,
    delete_user,
    change_password,
    clear_password,
    hash_password,
    authenticate_user,
    set_user_tags,
    list_users,
    set_permissions,
    set_permissions_globally,
    clear_permissions,
    list_permissions,
    list_user_permissions,
    set_topic_permissions,
    clear_topic_permissions,
    list_topic_permissions,
    list_user_topic_permissions,
)
