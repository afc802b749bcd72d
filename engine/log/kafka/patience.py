"""Decides when Kafka's silence is trouble, by the time without appended records being read back.

One message at a time of each partition is watched (a probe). Appended messages without a probe among them are also
watched.

Rules of this file
- Only time in which Kafka could have been heard counts: the polls of the reading thread, each for no longer than
  `LOOK_SECONDS`, and none while there are records to read. So a process that is short of CPU, or was suspended, does
  not mistake Kafka for unreachable.
- A partition from which any record arrives accepts events; its probe just has many others before it.
"""

from collections.abc import Mapping, Sequence

PATIENCE_SECONDS = 1.5
LOOK_SECONDS = 0.25  # polls are a tenth of a second apart if this process gets to run


class Probe:
    """A message in flight, identified by its bytes, so that another message with the same bytes serves as well."""

    __slots__ = ("since", "value")

    def __init__(self, value: bytes, since: float) -> None:
        self.value = value
        self.since = since


class Patience:
    """The measured silence. `waited`: the seconds that count.

    Only the reading thread changes it (`heard` also in the loop, while the loop reads)."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._looked: float | None = None
        self._heard = 0.0
        self._unwatched_since: float | None = None

    def probe(self, value: bytes) -> Probe:
        return Probe(value, self.waited)

    def heard(self, probe: Probe | None, values: Sequence[bytes]) -> bool:
        """Note records that were read back from a partition. Return True if its probe is among them."""
        self._heard = self.waited
        if probe is None:
            return False
        probe.since = self.waited
        return probe.value in values

    def look(self, now: float, behind: bool) -> None:
        """Count the time since the last poll.

        `now`: seconds of a clock that does not jump. `behind`: there are records to read."""
        if self._looked is not None and not behind:
            self.waited += min(now - self._looked, LOOK_SECONDS)
        self._looked = now

    def silent(self, probes: Mapping[str, Probe], outstanding: int) -> str | None:
        """Return the partition from which nothing has been read back for too long; None: there is none.

        `outstanding`: messages that Kafka has not accepted yet."""
        since = [(probe.since, name) for name, probe in probes.items()]
        if since or not outstanding:
            self._unwatched_since = None
        elif self._unwatched_since is None:
            self._unwatched_since = self.waited
        if self._unwatched_since is not None:  # appended while a probe was in flight, and none after it
            since.append((max(self._unwatched_since, self._heard), "the log"))
        oldest, name = min(since, default=(self.waited, ""))
        return name if self.waited - oldest > PATIENCE_SECONDS else None
