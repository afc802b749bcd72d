"""Takes a changed configuration over while the broker runs (SIGHUP). Open connections stay.

    what                                     how
    log level                                the logger of RewindMQ
    TLS: files, and what clients must show   a new context for each listener; open connections keep theirs
    limits                                   the alarms look again at once; the new timeout is for all deliveries
    loopback users                           from the next login on
    OAuth 2.0                                from the next login or token on; a file of keys is read again
    definitions                              the file is imported again, as at a start

Rules of this file
- All is checked first: the file, the values together, the certificates, then the definitions. If one of them is bad the
  broker keeps all that it has, and logs one line.
- A line names what was taken over. Another names what changed and needs a restart.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.definitions.document import load
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.identity.settings import BadKeys
from rewindmq.engine.logging_setup import LEVELS, set_level
from rewindmq.engine.tls import LiveContext

logger = logging.getLogger(__name__)


class NotTakenOver(Exception):
    """The configuration is bad; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Reread:
    """A configuration that was read again.

    `taken`, `waiting`: settings that changed and can be taken over, and those that need a restart, each as a text.
    `hold` is called when the first are in force."""

    config: Config
    taken: Sequence[str]
    waiting: Sequence[str]
    hold: Callable[[], None]


async def apply_settings(broker: Broker, contexts: Sequence[LiveContext], reread: Callable[[], Reread]) -> str:
    """Read the configuration again, take over what can be, and log what was done. Returns it in some words."""
    try:
        found = reread()
        config = _mixed(broker.config, found.config)
        for context in contexts:
            assert config.tls is not None, "a listener with TLS has settings of it"
            context.prepare(config.tls)
        take_tokens = broker.access.tokens.changed_to(config.tokens)
        if config.load_definitions is not None:
            await load(broker, config.load_definitions)
    except NotTakenOver as error:
        return _refused(str(error))
    except AmqpError as error:
        return _refused(f"definitions: {error.text}")
    except BadKeys as error:
        return _refused(f"oauth_keys: {error}")
    except OSError as error:  # ssl.SSLError is one
        return _refused(f"{error.filename or 'tls'}: {error.strerror or error}")
    level_before = broker.config.log_level
    broker.apply_settings(config)
    take_tokens()
    for context in contexts:
        context.renew()
    found.hold()
    renewed = ["certificates"] if contexts else []
    renewed += ["definitions"] if config.load_definitions is not None else []
    _set_level(level_before, config.log_level, partial(_tell, [*found.taken, *renewed], found.waiting))
    return "running, the configuration was read again"


def _set_level(before: str, level: str, tell: Callable[[], None]) -> None:
    """Set the log level if its setting changed (else what `set_log_level` said stays), and tell what changed while the
    log is at the more talkative of the two."""
    if LEVELS.index(level) < LEVELS.index(before):
        set_level(level)
    tell()
    if level != before:
        set_level(level)


def _tell(taken: Sequence[str], waiting: Sequence[str]) -> None:
    logger.info("the configuration was read again; taken over: %s", "; ".join(taken) or "nothing new")
    if waiting:
        logger.warning("changed, but in force after a restart only: %s", "; ".join(waiting))


def _refused(why: str) -> str:
    logger.error("the configuration was read again and is bad; all stays as it was: %s", why)
    return "running, with the configuration of before: the new one is bad"


def _mixed(old: Config, new: Config) -> Config:
    """The configuration of before, with that of the new one that needs no restart."""
    tls = old.tls if old.tls is None or new.tls is None else replace(new.tls, port=old.tls.port)
    return replace(
        old,
        log_level=new.log_level,
        tls=tls,
        vm_memory_high_watermark=new.vm_memory_high_watermark,
        disk_free_limit=new.disk_free_limit,
        consumer_timeout_ms=new.consumer_timeout_ms,
        loopback_users=new.loopback_users,
        tokens=new.tokens,
        load_definitions=old.load_definitions if old.read_only else new.load_definitions,
    )
