"""Decides when Kafka's silence is trouble: how long it has not given back appended records.

One message at a time of each partition is watched (a probe). Appended messages without a probe among them are watched,
too.

Rules of this file
- Only time counts in which Kafka could have been heard: the looks of the thread that reads back, each for no longer
  than `LOOK_SECONDS`, and none while there are records to read. So a process that is short of CPU, or stood still, does
  not take Kafka for away.
- A partition from which any record comes takes events: its probe only has many others before it.
"""

from collections.abc import Mapping, Sequence

PATIENCE_SECONDS = 1.5
LOOK_SECONDS = 0.25  # looks are a tenth of a second apart where this process gets to run


class Probe:
    """A message on its way there and back, known by its bytes: another message of the same bytes serves as well."""

    __slots__ = ("since", "value")

    def __init__(self, value: bytes, since: float) -> None:
        self.value = value
        self.since = since


class Patience:
    """Measures the silence. `waited`: the seconds that count.

    It is changed only by the thread that reads back (`heard` also in the loop, while the loop reads)."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._looked: float | None = None
        self._heard = 0.0
        self._unwatched_since: float | None = None

    def probe(self, value: bytes) -> Probe:
        return Probe(value, self.waited)

    def heard(self, probe: Probe | None, values: Sequence[bytes]) -> bool:
        """Note records that came back from a partition. Returns whether its probe is among them."""
        self._heard = self.waited
        if probe is None:
            return False
        probe.since = self.waited
        return probe.value in values

    def look(self, now: float, behind: bool) -> None:
        """Count the time since the last look.

        `now`: seconds of a clock that does not jump. `behind`: there are records to read."""
        if self._looked is not None and not behind:
            self.waited += min(now - self._looked, LOOK_SECONDS)
        self._looked = now

    def silent(self, probes: Mapping[str, Probe], outstanding: int) -> str | None:
        """The partition from which nothing has come back for too long; None: there is none.

        `outstanding`: messages that Kafka has not taken yet."""
        since = [(probe.since, name) for name, probe in probes.items()]
        if since or not outstanding:
            self._unwatched_since = None
        elif self._unwatched_since is None:
            self._unwatched_since = self.waited
        if self._unwatched_since is not None:  # appended while a probe was on its way, and none after it
            since.append((max(self._unwatched_since, self._heard), "the log"))
        oldest, name = min(since, default=(self.waited, ""))
        return name if self.waited - oldest > PATIENCE_SECONDS else None
