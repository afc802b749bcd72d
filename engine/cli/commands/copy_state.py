"""Our own command `copy_state`: makes the data directory of a new node from a running node (as pg_basebackup does)."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rewindmq.engine.cli.exits import CONFIG, DATA, CliError
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import DIRECTORY, command, option
from rewindmq.engine.cluster.store_copy import BadCopy, receive
from rewindmq.projections import system_calls
from rewindmq.projections.store.store import StateStore, StoreError


@command(
    "copy_state", option("--data", "Data directory of the new node: empty, or not there yet.", DIRECTORY, required=True)
)
def copy_state(settings: CliSettings, data: Path) -> None:
    """Copy the state of a running node on Kafka for a new node.

    The data directory appears when the whole copy is checked. Then start the new node with it, under another name: it
    folds only the events since the copy. The user must be an administrator.

    \b
    Example:
      rewindmq copy_state --url http://node-1:15672 --data ./data-3
    """
    data = data.resolve()
    check_empty(data)
    client = settings.client()
    settings.banner(f"Copying the state of {client.address} to {data} ...")
    data.parent.mkdir(parents=True, exist_ok=True)
    beside = data.with_name(f"{data.name}.{os.getpid()}.part")
    beside.mkdir()
    try:
        with client.download("state") as pieces:
            summary = received(pieces, beside)
        rename(beside, data)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    settings.banner(summary)


def check_empty(data: Path) -> None:
    """CliError when the directory is not empty, or is a mount point."""
    if not data.exists():
        return
    if any(data.iterdir()):
        raise CliError(CONFIG, f"{data} is not empty: give an empty directory, because a copy is for a new node")
    if data.is_mount():
        raise CliError(CONFIG, f"{data} is a mount point, which cannot be replaced: give a directory in it")


def received(pieces: Iterator[bytes], directory: Path) -> str:
    """Unpack a copy and checks it. Returns one line about it. CliError."""

    try:
        node, files = receive(pieces, directory)
        StateStore.open(directory / "state", read_only=True).close()  # this version can read it
    except BadCopy as error:
        raise CliError(DATA, f"the received copy is incomplete or damaged: {error}. Run the command again") from None
    except StoreError as error:
        raise CliError(DATA, f"the received copy cannot be opened: {error}") from None
    size = sum(int(each["bytes"]) for each in files.values())
    return f"Copied the state of node {node}: {len(files)} files, {size} bytes"


def rename(beside: Path, data: Path) -> None:
    """Move the finished copy to its place, durably."""

    beside.rename(data)  # fails when something came to be there meanwhile
    system_calls.sync_directory(data.parent)


COMMANDS = (copy_state,)
