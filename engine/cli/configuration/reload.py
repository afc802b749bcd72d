"""The configuration of a running broker, which SIGHUP reads again: what is taken over, and what needs a restart."""

from collections.abc import Callable

from rewindmq.engine.cli.configuration.assembly import Impossible, config_of
from rewindmq.engine.cli.configuration.sources import ConfigError, Sources, Value
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.config import Config
from rewindmq.engine.reload import NotTakenOver, Reread


def rereader(sources: Sources, values: dict[str, Value]) -> Callable[[], Reread]:
    """Return a function that reads the configuration again. `values`: those that the broker was started with.

    The function raises NotTakenOver."""
    held = dict(values)

    def reread() -> Reread:
        try:
            found = sources.values()
            config: Config = config_of(found)
        except (ConfigError, Impossible) as error:
            raise NotTakenOver(str(error)) from None
        changed = [name for name in SETTINGS if found[name].value != held[name].value]

        def hold() -> None:
            held.update((name, found[name]) for name in changed if SETTINGS[name].reload)

        return Reread(
            config,
            [_named(name, found[name]) for name in changed if SETTINGS[name].reload],
            [_named(name, found[name]) for name in changed if not SETTINGS[name].reload],
            hold,
        )

    return reread


def _named(name: str, value: Value) -> str:
    return f"{name} = {value.shown} ({value.origin})"
