"""Our own commands for Kafka's consoles: register the schemas, and copy the topics into a form that consoles read."""

import base64
import functools
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from rewindmq.engine.cli.client import trust
from rewindmq.engine.cli.exits import CONFIG, DATA, NO_PERMISSION, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.kafka import with_kafka
from rewindmq.engine.cli.usage import command, option
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.secret_file import BadSecret, secret_in
from rewindmq.engine.logging_setup import FORMATS, log_to_stderr

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import InKafka
    from rewindmq.engine.log.kafka.schema_registry import SchemaRegistry

PATH = click.Path(path_type=Path)
OPTIONS = (
    click.option(
        "--registry",
        "url",
        metavar="URL",
        required=True,
        help="The schema registry. Apicurio's has this interface at .../apis/ccompat/v7.",
    ),
    click.option(
        "--registry-user", "user", metavar="USER", help="User of the registry, with --registry-password-file."
    ),
    click.option(
        "--registry-password-file", "password_file", type=PATH, metavar="FILE", help="File with the password."
    ),
    click.option("--registry-token-file", "token_file", type=PATH, metavar="FILE", help="File with a bearer token."),
    click.option(
        "--registry-ca",
        "ca",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Certificate authority of an https registry (default: the system's).",
    ),
)

Opened = Callable[[], "SchemaRegistry"]


def with_registry(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds the options of a registry. The command gets `open_registry`."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any,
        url: str,
        user: str | None,
        password_file: Path | None,
        token_file: Path | None,
        ca: Path | None,
        **options: Any,
    ) -> Any:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CliError(USAGE, f"{url!r} is not the address of a schema registry: give --registry http://HOST:PORT")
        if "@" in parts.netloc:
            raise CliError(USAGE, "a password does not belong in an address: --registry-user, --registry-password-file")
        if (user is None) != (password_file is None):
            raise CliError(USAGE, "--registry-user and --registry-password-file go together")
        if user is not None and token_file is not None:
            raise CliError(USAGE, "a registry has a user with a password, or a token, not both")
        authorization = _authorization(user, password_file, token_file)

        def open_registry() -> "SchemaRegistry":
            from rewindmq.engine.log.kafka.schema_registry import SchemaRegistry

            return SchemaRegistry(url, authorization, trust(ca) if parts.scheme == "https" else None)

        return command(*arguments, open_registry=open_registry, **options)

    for each in reversed(OPTIONS):
        with_one = each(with_one)
    return with_one


def _authorization(user: str | None, password_file: Path | None, token_file: Path | None) -> str:
    try:
        if user is not None and password_file is not None:
            pair = f"{user}:{secret_in(password_file)}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return "" if token_file is None else f"Bearer {secret_in(token_file)}"
    except BadSecret as error:
        raise CliError(CONFIG, str(error)) from None


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors of the registry into one line and an exit code."""
    from rewindmq.engine.log.kafka.schema_registry import RegistryAway, RegistryDenied, RegistryError

    try:
        yield
    except RegistryError as error:
        away, refused = isinstance(error, RegistryAway), isinstance(error, RegistryDenied)
        raise CliError(UNAVAILABLE if away else NO_PERMISSION if refused else DATA, str(error)) from None


def _registered(open_registry: Opened, topics: Iterable[str]) -> dict[str, dict[str, int]]:
    """Register all schemas for the values of these topics. Returns by topic the ids, by fingerprint.

    Confluent's registry has one id for a schema, Apicurio's has one for each subject."""
    from rewindmq.engine.log.kafka.schema_registry import register

    with _told(), open_registry() as registry:
        return {topic: register(registry, f"{topic}-value") for topic in topics}


@command("register_schemas", option("--kafka-prefix PREFIX", "Prefix of the topics.", default="rewindmq"), common=False)
@with_registry
def register_schemas(open_registry: Opened, kafka_prefix: str) -> None:
    """Give a schema registry the schemas of history.

    They become versions of PREFIX.queues-value and PREFIX.metadata-value. Prints the subject, the fingerprint in the
    header of a record, and the id of each. A version that is there stays. The registry's own rule of compatibility is
    asked first. Kafka's consoles read copies of the topics only: see copy_for_consoles, which registers what it needs.

    \b
    Examples:
      rewindmq register_schemas --registry http://registry:8081
      rewindmq register_schemas --registry https://registry --registry-token-file FILE --kafka-prefix orders
    """
    topics = (f"{kafka_prefix}.metadata", f"{kafka_prefix}.queues")
    for topic, ids in _registered(open_registry, topics).items():
        for fingerprint, number in ids.items():
            click.echo(f"{topic}-value\t{fingerprint}\t{number}")


@command("copy_for_consoles", option("--log-format", "Format of the log.", click.Choice(FORMATS), "text"), common=False)
@with_kafka
@with_registry
def copy_for_consoles(kafka: "InKafka | None", open_registry: Opened, log_format: str) -> None:
    """Copy the topics of a history into topics that Kafka's consoles read.

    The copies are PREFIX.queues.console and PREFIX.metadata.console. The command goes on until SIGTERM. It makes the
    topics and registers the schemas. It may be killed and started again at any time, and goes on where the copy ends.
    Run one for a prefix.

    \b
    Examples:
      rewindmq copy_for_consoles --kafka kafka-1:9092 --registry http://registry:8081
    """
    if kafka is None:
        raise CliError(USAGE, "say where the history is: --kafka HOST:PORT")
    try:
        from rewindmq.engine.log.kafka.console_topics import ConsoleTopics
    except ModuleNotFoundError:
        raise CliError(
            UNAVAILABLE, "this needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'"
        ) from None
    log_to_stderr("info", log_format)
    asked_to_end: list[int] = []
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: asked_to_end.append(number))
    try:
        topics = ConsoleTopics(kafka.connect().clients, kafka.prefix)
        topics.copy(_registered(open_registry, topics.pairs.values()), lambda: bool(asked_to_end))
    except NoAnswer as error:
        raise CliError(UNAVAILABLE, str(error)) from None
    except LogError as error:
        raise CliError(DATA, str(error)) from None


COMMANDS = (register_schemas, copy_for_consoles)
