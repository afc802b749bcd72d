"""How long Kafka has not given back what was appended: when that is to be called trouble.

One message at a time of each partition is watched (a probe). Appended messages that no probe is among are watched, too.

Rules of this file
- What counts is time in which Kafka could have been heard: the looks of the thread that reads back, each for no longer
  than `LOOK_SECONDS`, and none while there is something to read. A process that is short of CPU, or stood still, is not
  taken for a Kafka that is away.
- A partition from which anything comes takes events: its probe has only many others before it.
"""

from collections.abc import Mapping, Sequence

PATIENCE_SECONDS = 1.5
LOOK_SECONDS = 0.25  # looks are a tenth of a second apart where this process gets to run


class Probe:
    """A message on its way there and back, known by its bytes: any other of the same bytes does as well."""

    __slots__ = ("since", "value")

    def __init__(self, value: bytes, since: float) -> None:
        self.value = value
        self.since = since


class Patience:
    """`waited`: the seconds that count. Changed in the thread that reads back only (`heard` also in the loop, when that
    is who reads)."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._looked: float | None = None
        self._heard = 0.0
        self._unwatched_since: float | None = None

    def probe(self, value: bytes) -> Probe:
        return Probe(value, self.waited)

    def heard(self, probe: Probe | None, values: Sequence[bytes]) -> bool:
        """These came back from a partition. Whether its probe is among them."""
        self._heard = self.waited
        if probe is None:
            return False
        probe.since = self.waited
        return probe.value in values

    def look(self, now: float, behind: bool) -> None:
        """`now`: seconds of a clock that does not jump. `behind`: there is something to read."""
        if self._looked is not None and not behind:
            self.waited += min(now - self._looked, LOOK_SECONDS)
        self._looked = now

    def silent(self, probes: Mapping[str, Probe], outstanding: int) -> str | None:
        """From where nothing has come back for too long. `outstanding`: messages that Kafka has not taken yet."""
        since = [(probe.since, name) for name, probe in probes.items()]
        if since or not outstanding:
            self._unwatched_since = None
        elif self._unwatched_since is None:
            self._unwatched_since = self.waited
        if self._unwatched_since is not None:  # appended while a probe was on its way, and none after it
            since.append((max(self._unwatched_since, self._heard), "the log"))
        oldest, name = min(since, default=(self.waited, ""))
        return name if self.waited - oldest > PATIENCE_SECONDS else None
