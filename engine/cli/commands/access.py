"""Users and what they may do."""

import sys

import click

from rewindmq.engine.cli.client import Client, Refused
from rewindmq.engine.cli.commands.policies import no_such_vhost
from rewindmq.engine.cli.exits import DATA, NO_USER, SOFTWARE, CliError
from rewindmq.engine.cli.settings import Settings, common


def password_from(given: str | None) -> str:
    """From the command line, or a line of standard input, asked for when that is a terminal."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CliError(DATA, "Password is not provided via argument or stdin")
    return line


def user_of(client: Client, name: str) -> dict[str, object]:
    try:
        return client.get_one("users", name)
    except Refused as refused:
        raise no_such_user(name) if refused.status == 404 else refused from None


def no_such_user(name: str) -> CliError:
    return CliError(NO_USER, f'User "{name}" does not exist')


@click.command("add_user")
@click.option(
    "--pre-hashed-password",
    is_flag=True,
    help="PASSWORD is a hash, as hash_password prints it (base64 of a salt of 4 bytes and SHA-256).",
)
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@common
def add_user(settings: Settings, name: str, secret: str | None, pre_hashed_password: bool) -> None:
    """Create a user. Without PASSWORD it is read from standard input. It has no permissions yet."""
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
@common
def delete_user(settings: Settings, name: str) -> None:
    """Remove a user, and all its permissions."""
    settings.banner(f'Deleting user "{name}" ...')
    try:
        settings.client().delete("users", name)
    except Refused as refused:
        raise no_such_user(name) if refused.status == 404 else refused from None


@click.command("change_password")
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@common
def change_password(settings: Settings, name: str, secret: str | None) -> None:
    """Change a user's password. Without PASSWORD it is read from standard input."""
    settings.banner(f'Changing password for user "{name}" ...')
    password = password_from(secret)
    client = settings.client()
    client.put("users", name, content={"password": password, "tags": user_of(client, name)["tags"]})


@click.command("clear_password")
@click.argument("name")
@common
def clear_password(settings: Settings, name: str) -> None:
    """Take a user's password away: it cannot log in with one any more."""
    settings.banner(f'Clearing password for user "{name}" ...')
    client = settings.client()
    client.put("users", name, content={"tags": user_of(client, name)["tags"]})


@click.command("hash_password")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@common
def hash_password(settings: Settings, secret: str | None) -> None:
    """Print a hash of a password as RabbitMQ has them, for add_user --pre-hashed-password and for definitions."""
    from rewindmq.engine.broker.passwords import rabbitmq_hash

    if secret == "":
        raise CliError(DATA, "(argument validation): Bad argument: password cannot be an empty string")
    settings.banner("Will hash provided password")
    click.echo(rabbitmq_hash(password_from(secret)))


@click.command("authenticate_user")
@click.argument("name")
@click.argument("secret", metavar="[PASSWORD]", required=False)
@common
def authenticate_user(settings: Settings, name: str, secret: str | None) -> None:
    """Does this password let this user in?"""
    settings.banner(f'Authenticating user "{name}" ...')
    settings.given(user=name, password=password_from(secret))
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
@common
def set_user_tags(settings: Settings, name: str, tag: tuple[str, ...]) -> None:
    """Set a user's tags (administrator, monitoring, policymaker, management); without TAG, take them all away."""
    settings.banner(f'Setting tags for user "{name}" to [{", ".join(tag)}] ...')
    client = settings.client()
    user_of(client, name)
    client.put("users", name, content={"tags": list(tag), "keep_password": True})


@click.command("list_users")
@common
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
@common
def set_permissions(settings: Settings, name: str, configure: str, write: str, read: str) -> None:
    """Let a user configure, write to and read from what matches these regular expressions, in a virtual host."""
    settings.banner(f'Setting permissions for user "{name}" in vhost "{settings.home}" ...')
    client = settings.client()
    content = {"configure": configure, "write": write, "read": read}
    try:
        client.put("permissions", settings.home, name, content=content)
    except Refused as refused:
        if refused.reason == "vhost_or_user_not_found":
            user_of(client, name)
            raise no_such_vhost(settings.home) from None
        raise


@click.command("set_permissions_globally")
@click.argument("name")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@common
def set_permissions_globally(settings: Settings, name: str, configure: str, write: str, read: str) -> None:
    """Let a user configure, write to and read from what matches these regular expressions, in every virtual host."""
    settings.banner(f'Setting permissions for user "{name}" in all virtual hosts ...')
    client = settings.client()
    user_of(client, name)
    content = {"configure": configure, "write": write, "read": read}
    for vhost in client.get("vhosts"):
        client.put("permissions", str(vhost["name"]), name, content=content)


@click.command("clear_permissions")
@click.argument("name")
@common
def clear_permissions(settings: Settings, name: str) -> None:
    """Take a user's permissions in a virtual host away."""
    settings.banner(f'Clearing permissions for user "{name}" in vhost "{settings.home}" ...')
    client = settings.client()
    try:
        client.delete("permissions", settings.home, name)
    except Refused as refused:
        if refused.status != 404:
            raise
        user_of(client, name)
        if not client.exists("vhosts", settings.home):
            raise no_such_vhost(settings.home) from None  # a user without permissions there: nothing to take


@click.command("list_permissions")
@common
def list_permissions(settings: Settings) -> None:
    """List who may do what in a virtual host."""
    settings.banner(f'Listing permissions for vhost "{settings.home}" ...')
    try:
        rows = settings.client().get("vhosts", settings.home, "permissions")
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None
    settings.show(("user", "configure", "write", "read"), rows)


@click.command("list_user_permissions")
@click.argument("name")
@common
def list_user_permissions(settings: Settings, name: str) -> None:
    """List what a user may do, by virtual host."""
    settings.banner(f'Listing permissions for user "{name}" ...')
    client = settings.client()
    user_of(client, name)
    settings.show(("vhost", "configure", "write", "read"), client.get("users", name, "permissions"))


@click.command("set_topic_permissions")
@click.argument("name")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
@common
def set_topic_permissions(settings: Settings, name: str, exchange: str, write: str, read: str) -> None:
    """Let a user publish to and bind to a topic exchange only with routing keys that match these expressions."""
    settings.banner(f'Setting topic permissions on "{exchange}" for user "{name}" in vhost "{settings.home}" ...')
    client = settings.client()
    content = {"exchange": exchange, "write": write, "read": read}
    try:
        client.put("topic-permissions", settings.home, name, content=content)
    except Refused as refused:
        if refused.reason == "vhost_or_user_not_found":
            user_of(client, name)
            raise no_such_vhost(settings.home) from None
        raise


@click.command("clear_topic_permissions")
@click.argument("name")
@click.argument("exchange", required=False)
@common
def clear_topic_permissions(settings: Settings, name: str, exchange: str | None) -> None:
    """Take a user's topic permissions for an exchange away, or all in a virtual host."""
    on = "" if exchange is None else f' on "{exchange}"'
    settings.banner(f'Clearing topic permissions{on} for user "{name}" in vhost "{settings.home}" ...')
    client = settings.client()
    try:
        client.delete("topic-permissions", settings.home, name, *([] if exchange is None else [exchange]))
    except Refused as refused:
        if refused.status != 404:
            raise
        user_of(client, name)
        if not client.exists("vhosts", settings.home):
            raise no_such_vhost(settings.home) from None  # a user without topic permissions there: nothing to take


@click.command("list_topic_permissions")
@common
def list_topic_permissions(settings: Settings) -> None:
    """List the topic permissions in a virtual host."""
    settings.banner(f'Listing topic permissions for vhost "{settings.home}" ...')
    try:
        rows = settings.client().get("vhosts", settings.home, "topic-permissions")
    except Refused as refused:
        raise no_such_vhost(settings.home) if refused.status == 404 else refused from None
    settings.show(("user", "exchange", "write", "read"), rows)


@click.command("list_user_topic_permissions")
@click.argument("name")
@common
def list_user_topic_permissions(settings: Settings, name: str) -> None:
    """List a user's topic permissions, by virtual host (without headers, as rabbitmqctl)."""
    settings.banner(f'Listing topic permissions for user "{name}" ...')
    client = settings.client()
    user_of(client, name)
    settings.given(no_table_headers=True)
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
