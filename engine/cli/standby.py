"""Our own commands for a second machine: follow, promote."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import click

from rewindmq.engine.cli.configuration.assembly import credentials_of
from rewindmq.engine.cli.configuration.commands import read_sources
from rewindmq.engine.cli.configuration.options import with_sources
from rewindmq.engine.cli.configuration.sources import Sources
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.lock import LogInUse
from rewindmq.projections.store.store import StoreError


@command("follow URL", common=False)
@with_sources
def follow(sources: Sources, url: str) -> None:
    """Copy the log of a running broker, and serve its history read-only.

    It runs in the foreground, until SIGINT or SIGTERM. URL is the leader's management API. --data is the directory of
    the copy: an empty one, one that followed before, or that of an old leader, which goes back to where the histories
    branched. The options are those of `start`. If this process or the leader is killed, start it again: it goes on.

    \b
    Examples:
      rewindmq follow http://leader:15672 --data ./copy
      rewindmq follow https://leader:15671 --data ./copy --leader-user standby --leader-pass-file ./secret
    """
    from rewindmq.engine.process import run

    values, config = read_sources(sources)
    if config.kafka is not None:
        raise CliError(USAGE, "a log in Kafka needs no follower: start another node with --kafka")
    if config.archive.url or config.keep_history_ms is not None or config.keep_bodies_days is not None:
        raise CliError(USAGE, "a follower changes nothing: without --archive, --keep-history and --keep-bodies")
    os.environ.update(credentials_of(values["archive_credentials"].value))
    code = run(replace(config, follow=url, read_only=True))
    if code:
        raise click.exceptions.Exit(code)


@command(
    "promote", option("--data", "The directory of a follower that was stopped.", EXISTING_DIRECTORY, required=True)
)
def promote(settings: CliSettings, data: Path) -> None:
    """Make the copy of a follower the leader: then start a broker on it.

    Stop the follower before. The command stops the old leader, if it answers at the address that was followed. If not,
    stop it yourself: no command reaches a machine that does not answer. With --confirm-after follower it can
    confirm nothing.

    \b
    Examples:
      rewindmq promote --data ./copy
      rewindmq start --data ./copy
    """
    from rewindmq.engine.standby.promotion import promote as promote_copy

    try:
        promoted = promote_copy(data)
    except LogInUse as error:
        raise CliError(UNAVAILABLE, f"{error}: stop the follower first") from None
    except (LogError, StoreError) as error:
        raise CliError(DATA, str(error)) from None
    said = _tell(settings, data, promoted.leader)
    rows: list[dict[str, Value]] = [
        {"partition": name, "begins": end, "kept_aside": promoted.aside.get(name, 0)}
        for name, end in promoted.ends.items()
    ]
    settings.banner(f"{data} is the leader now, as history {promoted.identity[:16]}... Start a broker on it.")
    settings.show(rows)
    if not settings.quiet:
        click.echo(said, err=True)


def _tell(settings: CliSettings, data: Path, leader: str) -> str:
    """Notify the old leader, with the login of the command. Returns the result as text."""
    from rewindmq.engine.standby.client import Away, LeaderClient
    from rewindmq.engine.standby.promotion import tell
    from rewindmq.engine.standby.refusal import RefusedByLeader

    user, password = settings.login()

    async def ask() -> None:
        ca = settings.tls_ca_cert_file or os.environ.get("REWINDMQ_TLS_CA")
        config = Config(
            data, follow=leader, leader_user=user, leader_pass=password, leader_ca=None if ca is None else Path(ca)
        )
        client = LeaderClient(config)
        try:
            await tell(client, data)
        finally:
            await client.close()

    again = "it was not told, and must not continue: stop it before clients connect here (then `rewindmq follow` on it)"
    try:
        asyncio.run(ask())
    except RefusedByLeader as refused:
        if refused.word == "fenced":
            return f"The old leader at {leader} was told, and stops."
        return f"The old leader: {refused}; {again}"
    except (Away, LogError) as error:
        return f"The old leader: {error}; {again}"
    return f"The old leader at {leader} did not react: check that it is the old leader; {again}"


COMMANDS = (follow, promote)
