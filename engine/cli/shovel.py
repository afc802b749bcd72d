"""Our own command: move a queue from one broker to another, as RabbitMQ's shovel plugin does."""

import asyncio
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rewindmq.engine.cli.exits import CONFIG, DATA, NO_PERMISSION, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.usage import EXISTING_FILE, FILE, command, option
from rewindmq.engine.log.secret_file import BadSecret, secret_in
from rewindmq.engine.logging_setup import FORMATS, log_to_stderr
from rewindmq.engine.shovel.address import Address, BadAddress, address_from

if TYPE_CHECKING:
    from rewindmq.engine.shovel.session import Job

AN_ADDRESS = "amqp://USER@HOST:PORT/VHOST, or amqps:// for TLS. Without a vhost it is /, without a user guest"


@command(
    "shovel",
    option("--src-uri URI", f"The broker to move from: {AN_ADDRESS}.", required=True),
    option("--src-password-file FILE", "File with the password there.", FILE),
    option("--src-tls-ca-cert-file FILE", "Certificate authority of an amqps:// source.", EXISTING_FILE),
    option("--src-queue QUEUE", "The queue to move.", required=True),
    option("--dest-uri URI", "The broker to move to, as --src-uri.", required=True),
    option("--dest-password-file FILE", "File with the password there.", FILE),
    option("--dest-tls-ca-cert-file FILE", "Certificate authority of an amqps:// target.", EXISTING_FILE),
    option("--dest-queue QUEUE", "The queue to move to (default: the name of the source's)."),
    option("--dest-exchange EXCHANGE", "Publish to this exchange instead of a queue."),
    option("--dest-exchange-key KEY", "With --dest-exchange: the routing key (default: that of each message)."),
    option(
        "--prefetch-count N",
        "Messages on their way at most, which is what is in memory.",
        click.IntRange(1, 65_535),
        1_000,
    ),
    option(
        "--delete-after",
        "When the shovel ends: never, or when as many messages are moved as waited at the start.",
        click.Choice(["never", "queue-length"]),
        "never",
    ),
    option("--log-format", "Format of the log.", click.Choice(FORMATS), "text"),
    common=False,
)
def shovel(
    src_uri: str,
    src_password_file: Path | None,
    src_tls_ca_cert_file: Path | None,
    src_queue: str,
    dest_uri: str,
    dest_password_file: Path | None,
    dest_tls_ca_cert_file: Path | None,
    dest_queue: str | None,
    dest_exchange: str | None,
    dest_exchange_key: str | None,
    prefetch_count: int,
    delete_after: str,
    log_format: str,
) -> None:
    """Move the messages of a queue to another broker. Each of the two is a RabbitMQ or a RewindMQ.

    A message leaves the source when the destination has confirmed it. None is lost. After a crash some come twice;
    these have `redelivered` in the header x-shovelled. A broker that is away is tried again for as long as it takes.
    Queues and exchanges must exist on both sides. The log is on stderr. SIGTERM ends the shovel with exit code 0.

    \b
    Examples:
      rewindmq shovel --src-uri amqp://rabbit:5672 --src-queue orders --dest-uri amqp://localhost:5673
      rewindmq shovel --src-uri amqp://mover@rabbit --src-password-file FILE --src-queue orders --dest-uri amqp://localhost
      rewindmq shovel --src-uri amqp://rabbit --src-queue orders --dest-uri amqp://localhost --delete-after queue-length
    """
    if dest_queue is not None and dest_exchange is not None:
        raise CliError(USAGE, "a message goes to --dest-queue or to --dest-exchange, not to both")
    if dest_exchange_key is not None and dest_exchange is None:
        raise CliError(USAGE, "--dest-exchange-key is the routing key for an exchange: also give --dest-exchange")
    if dest_exchange == "":
        raise CliError(USAGE, "the default exchange leads to a queue: give --dest-queue instead of --dest-exchange")
    source = _address("src", src_uri, src_password_file, src_tls_ca_cert_file)
    destination = _address("dest", dest_uri, dest_password_file, dest_tls_ca_cert_file)
    if dest_exchange is None:
        dest_exchange, dest_exchange_key = "", src_queue if dest_queue is None else dest_queue
        if (source.shown, src_queue) == (destination.shown, dest_exchange_key):
            raise CliError(
                USAGE, f"queue '{src_queue}' would be moved to itself: give another --dest-uri or --dest-queue"
            )
    if find_spec("pika") is None:
        raise CliError(UNAVAILABLE, "a shovel needs pika, not installed here: pip install 'rewindmq[shovel]'")
    from rewindmq.engine.shovel.session import Job

    log_to_stderr("info", log_format)
    job = Job(source, src_queue, destination, dest_exchange, dest_exchange_key, prefetch_count)
    asyncio.run(_run(job, delete_after == "queue-length"))


def _address(side: str, uri: str, password_file: Path | None, ca: Path | None) -> Address:
    try:
        password = None if password_file is None else secret_in(password_file)
    except BadSecret as error:
        raise CliError(CONFIG, str(error)) from None
    try:
        return address_from(uri, password, ca)
    except BadAddress as error:
        raise CliError(USAGE, f"--{side}-uri: {error} (--{side}-password-file)") from None


async def _run(job: "Job", only_waiting: bool) -> None:
    """Move until the end, or until SIGTERM or SIGINT. CliError."""
    from rewindmq.engine.shovel.shovel import Shovel, ShovelRefused

    running = Shovel(job, only_waiting)
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, running.stop.set)
    try:
        await running.run()
    except ShovelRefused as refused:
        raise CliError(NO_PERMISSION if refused.is_permission else DATA, str(refused)) from None


COMMANDS = (shovel,)
