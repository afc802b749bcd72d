"""The bindings of a topology, indexed by both ends. Every index is in the order of binding."""

from collections.abc import Callable

from rewindmq.schemas.metadata_events import Bound

Exchange = tuple[str, str]  # vhost, name
Destination = tuple[str, str, str]  # vhost, destination type (queue or exchange), name


class Bindings:
    """All bindings. `watcher` gets each added (True) or removed (False) one, except those of a deleted vhost."""

    def __init__(self) -> None:
        self.all: dict[Bound, None] = {}
        self.by_source: dict[Exchange, dict[Bound, None]] = {}
        self.by_destination: dict[Destination, dict[Bound, None]] = {}
        self.to_exchanges: dict[Exchange, dict[Bound, None]] = {}  # by source
        self.watcher: Callable[[Bound, bool], None] | None = None

    def add(self, bound: Bound) -> None:
        """Add a binding, unless it exists."""
        if bound in self.all:
            return
        self.all[bound] = None
        self.by_source.setdefault((bound.vhost, bound.source), {})[bound] = None
        self.by_destination.setdefault((bound.vhost, bound.destination_type, bound.destination), {})[bound] = None
        if bound.destination_type == "exchange":
            self.to_exchanges.setdefault((bound.vhost, bound.source), {})[bound] = None
        if self.watcher is not None:
            self.watcher(bound, True)

    def remove(self, bound: Bound) -> bool:
        """Remove a binding, and return True if it existed."""
        if bound not in self.all:
            return False
        del self.all[bound]
        source = (bound.vhost, bound.source)
        of_source = self.by_source[source]
        del of_source[bound]
        if not of_source:
            del self.by_source[source]
        destination = (bound.vhost, bound.destination_type, bound.destination)
        of_destination = self.by_destination[destination]
        del of_destination[bound]
        if not of_destination:
            del self.by_destination[destination]
        if bound.destination_type == "exchange":
            del self.to_exchanges[source][bound]
            if not self.to_exchanges[source]:
                del self.to_exchanges[source]
        if self.watcher is not None:
            self.watcher(bound, False)
        return True

    def drop_vhost(self, vhost: str) -> None:
        """Remove the bindings of a vhost."""
        for bound in [bound for bound in self.all if bound.vhost == vhost]:
            del self.all[bound]
        for source in [source for source in self.by_source if source[0] == vhost]:
            del self.by_source[source]
            self.to_exchanges.pop(source, None)
        for destination in [destination for destination in self.by_destination if destination[0] == vhost]:
            del self.by_destination[destination]
