"""Users, their passwords, tags and permissions."""

import sys

import click

from rewindmq.engine.cli.client import Json, RequestRefused
from rewindmq.engine.cli.columns import field, fields
from rewindmq.engine.cli.exits import DATA, SOFTWARE, CliError
from rewindmq.engine.cli.lookups import find_user, no_such_vhost
from rewindmq.engine.cli.rows import Asked, Row, commands
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command, flag

PASSWORD = click.Argument(["secret"], metavar="[PASSWORD]", required=False)


def password_from(given: str | None) -> str:
    """Return a password from the command line, a prompt on a terminal, or the first line of standard input.

    CliError."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CliError(DATA, "Password is not provided via argument or stdin")
    return line


def not_granted(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of a missing user or a missing virtual host: the API does not say which of the two is
    missing."""
    if refused.reason != "vhost_or_user_not_found":
        return refused
    find_user(asked.client, asked["name"])
    return no_such_vhost(asked["vhost"])


def not_revoked(asked: Asked, refused: RequestRefused) -> CliError | None:
    """Return the error of a missing user or a missing virtual host. A user without permissions is not an error."""
    if refused.status != 404:
        return refused
    find_user(asked.client, asked["name"])
    return None if asked.client.exists("vhosts", asked["vhost"]) else no_such_vhost(asked["vhost"])


def tags_of(asked: Asked) -> object:
    """Return the tags of the user, which a change of something else keeps.

    Raises CliError if the user does not exist."""
    return find_user(asked.client, asked["name"])["tags"]


def new_password(asked: Asked) -> Json:
    """Return the content that gives a user another password."""
    return {"password": password_from(asked["secret"]), "tags": tags_of(asked)}


@command(
    "add_user NAME",
    flag(
        "--pre-hashed-password",
        "PASSWORD is a hash, as hash_password prints it (base64 of a salt of 4 bytes and SHA-256).",
    ),
    PASSWORD,
)
def add_user(settings: CliSettings, name: str, secret: str | None, pre_hashed_password: bool) -> None:
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


@command("hash_password", PASSWORD)
def hash_password(settings: CliSettings, secret: str | None) -> None:
    """Print the hash of a password, in RabbitMQ's format.

    `add_user --pre-hashed-password` and definitions take it."""
    from rewindmq.engine.broker.passwords import rabbitmq_hash

    if secret == "":
        raise CliError(DATA, "(argument validation): Bad argument: password cannot be an empty string")
    settings.banner("Will hash provided password")
    click.echo(rabbitmq_hash(password_from(secret)))


@command("authenticate_user NAME", PASSWORD)
def authenticate_user(settings: CliSettings, name: str, secret: str | None) -> None:
    """Check the password of a user."""
    settings.banner(f'Authenticating user "{name}" ...')
    settings.update(user=name, password=password_from(secret))
    try:
        settings.client().get_one("whoami")
    except RequestRefused:  # right password, but no management tag: that was not the question
        pass
    except CliError as error:
        if error.code == DATA:
            raise CliError(DATA, f'failed to authenticate user "{name}": invalid credentials') from None
        raise
    settings.banner("Success")


@command("set_permissions_globally NAME CONFIGURE WRITE READ")
def set_permissions_globally(settings: CliSettings, name: str, **content: str) -> None:
    """Set the permissions of a user in all virtual hosts.

    CONFIGURE, WRITE and READ are regular expressions of queue and exchange names."""
    settings.banner(f'Setting permissions for user "{name}" in all virtual hosts ...')
    client = settings.client()
    find_user(client, name)
    for vhost in client.get("vhosts"):
        client.put("permissions", str(vhost["name"]), name, content=content)


def clearing_topics(asked: Asked) -> str:
    """Return the banner of clear_topic_permissions."""
    on = "" if asked["exchange"] is None else ' on "{exchange}"'
    return asked.text(f'Clearing topic permissions{on} for user "{{name}}" in vhost "{{vhost}}" ...')


COMMANDS = commands(
    add_user,
    Row("delete_user NAME", "Remove a user with its permissions.", 'Deleting user "{name}" ...', "DELETE users/{name}"),
    Row(
        "change_password NAME",
        "Change a user's password. Without PASSWORD it is read from standard input.",
        'Changing password for user "{name}" ...',
        "PUT users/{name}",
        body=new_password,
        params=(PASSWORD,),
    ),
    Row(
        "clear_password NAME",
        "Remove the password of a user, who can then not log in with one.",
        'Clearing password for user "{name}" ...',
        "PUT users/{name}",
        body=lambda asked: {"tags": tags_of(asked)},
    ),
    hash_password,
    authenticate_user,
    Row(
        "set_user_tags NAME [TAG]...",
        "Set the tags of a user.\n\n"
        "Tags: administrator, monitoring, policymaker, management. Without TAG all tags are removed.",
        'Setting tags for user "{name}" to [{tag}] ...',
        "PUT users/{name}",
        body=lambda asked: {"tags": list(asked["tag"]), "keep_password": tags_of(asked) is not None},
    ),
    Row(
        "list_users",
        "List the users and their tags.",
        "Listing users ...",
        "GET users",
        {"user": field("name"), "tags": field("tags")},
    ),
    Row(
        "set_permissions NAME CONFIGURE WRITE READ",
        "Set the permissions of a user in a virtual host.\n\n"
        "CONFIGURE, WRITE and READ are regular expressions of queue and exchange names.",
        'Setting permissions for user "{name}" in vhost "{vhost}" ...',
        "PUT permissions/{vhost}/{name}",
        body="configure write read",
        refused=not_granted,
        examples=("rewindmq set_permissions -p / alice '^orders' '.*' '.*'",),
    ),
    set_permissions_globally,
    Row(
        "clear_permissions NAME",
        "Remove the permissions of a user in a virtual host.",
        'Clearing permissions for user "{name}" in vhost "{vhost}" ...',
        "DELETE permissions/{vhost}/{name}",
        refused=not_revoked,
    ),
    Row(
        "list_permissions",
        "List the permissions in a virtual host.",
        'Listing permissions for vhost "{vhost}" ...',
        "GET vhosts/{vhost}/permissions",
        fields("user configure write read"),
    ),
    Row(
        "list_user_permissions NAME",
        "List the permissions of a user in all virtual hosts.",
        'Listing permissions for user "{name}" ...',
        "GET users/{name}/permissions",
        fields("vhost configure write read"),
    ),
    Row(
        "set_topic_permissions NAME EXCHANGE WRITE READ",
        "Set the routing keys that a user may use on a topic exchange.\n\n"
        "WRITE and READ are regular expressions of routing keys, for publishing and for binding.",
        'Setting topic permissions on "{exchange}" for user "{name}" in vhost "{vhost}" ...',
        "PUT topic-permissions/{vhost}/{name}",
        body="exchange write read",
        refused=not_granted,
    ),
    Row(
        "clear_topic_permissions NAME [EXCHANGE]",
        "Remove the topic permissions of a user in a virtual host.\n\nWithout EXCHANGE for all exchanges.",
        clearing_topics,
        "DELETE topic-permissions/{vhost}/{name}/{exchange}",
        refused=not_revoked,
    ),
    Row(
        "list_topic_permissions",
        "List the topic permissions in a virtual host.",
        'Listing topic permissions for vhost "{vhost}" ...',
        "GET vhosts/{vhost}/topic-permissions",
        fields("user exchange write read"),
    ),
    Row(
        "list_user_topic_permissions NAME",
        "List the topic permissions of a user in all virtual hosts.\n\nWithout headers, as rabbitmqctl prints them.",
        'Listing topic permissions for user "{name}" ...',
        "GET users/{name}/topic-permissions",
        fields("vhost exchange write read"),
        check=lambda asked: asked.settings.update(no_table_headers=True),
    ),
)
