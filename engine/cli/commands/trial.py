"""`rewindmq try`: a broker with a week of history in it, for as long as it runs.

Its data are the log in flights.zip, which `python -m tests.demo.week` makes, and go with it.
"""

import os
import shlex
import shutil
import signal
import sys
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import click

from rewindmq.engine.cli.child_broker import ChildBroker
from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.usage import command, flag

HISTORY = Path(__file__).resolve().parent.parent / "flights.zip"
AMQP_PORT, HTTP_PORT = 5672, 15672  # or others, if these are taken
QUEUE, MARK = "cancelled", "before-the-purge"


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
        if signal.getsignal(number) is signal.SIG_DFL:  # otherwise `nohup` has set it
            signal.signal(number, signal.default_int_handler)  # they end it as Ctrl-C does
    with TemporaryDirectory(prefix="rewindmq-try-") as directory:
        with ZipFile(HISTORY) as packed:
            packed.extractall(directory)
        broker = ChildBroker(Path(directory), AMQP_PORT, HTTP_PORT)
        try:
            broker.start()
            purged = purge(broker.client())
            desk = f"http://localhost:{broker.http_port}/"
            click.echo(guide(desk, broker, purged))
            if open_desk:
                webbrowser.open(f"{desk}#/queues/%2F/{QUEUE}")
            raise CliError(UNAVAILABLE, f"the broker has ended (exit status {broker.wait()}); its error is above")
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the data may go only when the broker has ended
            broker.stop()


def purge(client: Client) -> int:
    """Give the moment a name, and make the mistake. Returns the number of messages that are gone."""
    client.put("marks", MARK, content={"note": "rewindmq try"})
    messages = client.get_one("queues", "/", QUEUE)["messages"]
    client.delete("queues", "/", QUEUE, "contents")
    return int(str(messages))


def guide(desk: str, broker: ChildBroker, purged: int) -> str:
    """Return the text for the user."""
    words = ["rewindmq"] if shutil.which("rewindmq") else [sys.executable, "-m", "rewindmq"]
    if broker.http_port != HTTP_PORT or os.environ.get("REWINDMQ_URL"):
        words += ["--http-port", str(broker.http_port)]
    if any(map(os.environ.get, ("REWINDMQ_USER", "REWINDMQ_PASSWORD", "REWINDMQ_PASSWORD_FILE"))):
        words += ["--user", "guest", "--password", "guest"]
    program = shlex.join(words)
    return f"""\
A broker runs on port {broker.amqp_port}. It has a week of departures from New York (February 2013) in its history.
Queue {QUEUE} had {purged} messages, and was purged just now, by mistake.

The desk:      {desk}   user guest, password guest
See it:        {program} rewind {QUEUE} --at mark:{MARK}
Who was it?    {program} history {QUEUE} --tail 3
Undo it:       {program} restore {QUEUE} --undo purge

Ctrl-C ends the broker and removes its data."""


COMMANDS = (try_it,)
