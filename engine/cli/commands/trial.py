"""`rewindmq try`: a broker with a week of history in it, for as long as it runs.

Its data are the log in flights.zip, which `python -m tests.demo.week` makes, and go with it.
"""

import shutil
import signal
import socket
import subprocess
import sys
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import click

from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.usage import command, flag

HISTORY = Path(__file__).resolve().parent.parent / "flights.zip"
AMQP_PORT, HTTP_PORT = 5672, 15672  # or others, if these are taken
QUEUE, MARK = "cancelled", "before-the-purge"
SECONDS = 60.0


@command("try", flag("--open open_desk", "Open the desk in a browser."), common=False)
def try_it(open_desk: bool) -> None:
    """Run a temporary broker with a week of history, to try RewindMQ out.

    The history is of real flights, and one of its queues was purged by mistake just now. The data are in a temporary
    directory, and are removed when it ends. Ctrl-C ends it.

    \b
    Examples:
      rewindmq try
      rewindmq try --open
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # they end it as Ctrl-C does
    amqp_port, http_port = free_port(AMQP_PORT), free_port(HTTP_PORT)
    with TemporaryDirectory(prefix="rewindmq-try-") as directory:
        with ZipFile(HISTORY) as packed:
            packed.extractall(directory)
        broker = start(Path(directory), amqp_port, http_port)
        try:
            await_ready(broker)
            purged = purge(Client(f"http://127.0.0.1:{http_port}", "guest", "guest", SECONDS))
            desk = f"http://localhost:{http_port}/"
            click.echo(guide(desk, amqp_port, http_port, purged))
            if open_desk:
                webbrowser.open(f"{desk}#/queues/%2F/{QUEUE}")
            broker.wait()
        except KeyboardInterrupt:
            pass
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait()


def free_port(wanted: int) -> int:
    """Return this port of the loopback address, or another one if it is taken."""
    for port in (wanted, 0):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(sock.getsockname()[1])
    raise CliError(UNAVAILABLE, "there is no free port on 127.0.0.1")


def start(data: Path, amqp_port: int, http_port: int) -> "subprocess.Popen[str]":
    """Start a broker."""
    options = ["--data", str(data), "--host", "127.0.0.1", "--amqp-port", str(amqp_port), "--http-port", str(http_port)]
    return subprocess.Popen(
        [sys.executable, "-m", "rewindmq", "start", "--log-level", "error", *options],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches it as the SIGTERM of this process
    )


def await_ready(broker: "subprocess.Popen[str]") -> None:
    """Wait until clients may come. CliError."""
    assert broker.stdout is not None
    if not broker.stdout.readline():
        raise CliError(UNAVAILABLE, f"the broker did not start (exit status {broker.wait()}); its error is above")


def purge(client: Client) -> int:
    """Give the moment a name, and make the mistake. Returns the number of messages that are gone."""
    client.put("marks", MARK, content={"note": "rewindmq try"})
    messages = client.get_one("queues", "/", QUEUE)["messages"]
    client.delete("queues", "/", QUEUE, "contents")
    return int(str(messages))


def guide(desk: str, amqp_port: int, http_port: int, purged: int) -> str:
    """Return the text for the user."""
    port = "" if http_port == HTTP_PORT else f" --http-port {http_port}"
    program = "rewindmq" if shutil.which("rewindmq") else sys.argv[0]
    return f"""\
A broker runs, with a week of departures from New York (February 2013) in its history. AMQP is on port {amqp_port}.
Queue {QUEUE} had {purged} messages, and was purged just now, by mistake.

The desk:      {desk}   user guest, password guest
See it:        {program}{port} rewind {QUEUE} --at mark:{MARK}
Who was it?    {program}{port} history {QUEUE} --tail 3
Undo it:       {program}{port} restore {QUEUE} --undo purge

Ctrl-C ends the broker and removes its data."""


COMMANDS = (try_it,)
