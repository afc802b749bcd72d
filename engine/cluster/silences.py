"""Finds the nodes that have been silent for too long, by the order of heartbeats in the log.

    own beat | other's beat | own beat   own beat   own beat
                              ^ the other is silent from here on ...  ^ ... to here, and missed three beats

Rules of this file
- Only own beats that were read back from the log count. While the log is unreachable none is, so nobody appears lost.
- Silence is the time between two such own beats, in seconds of this process. A suspended process has at most one beat
  in flight, so it reads the others' records before it has missed `LEAST_MISSED` of their beats.
- From a slow log few own beats are read back. A node is nevertheless lost after its time, not after a number of round
  trips.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_MISSED = 3


@dataclass(slots=True)
class NodeSilence:
    """A node's silence: the number of own beats since its last one, and the arrivals of the first and the last."""

    missed: int
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def __str__(self) -> str:
        return f"{self.seconds:.1f} seconds, {self.missed} beats"


class Silences:
    """The silence of each other node, by epoch. `seconds`: the limit for a node's silence."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._silences: dict[int, NodeSilence] = {}

    def missed(self, epochs: Iterable[int], now: float) -> None:
        """Note that an own beat was read back at `now`, without beats of these epochs before it."""
        before, self._silences = self._silences, {}
        for epoch in epochs:
            silence = before.get(epoch) or NodeSilence(0, now, now)
            silence.missed += 1
            silence.until = now
            self._silences[epoch] = silence

    def heard(self, epoch: int) -> None:
        """Note a beat of this epoch."""
        self._silences.pop(epoch, None)

    def lapsed(self, epochs: Iterable[int]) -> dict[int, NodeSilence]:
        """Return the silences, among those of these epochs, that have lasted for too long."""
        found = {epoch: self._silences[epoch] for epoch in epochs if epoch in self._silences}
        return {
            epoch: silence
            for epoch, silence in found.items()
            if silence.missed >= LEAST_MISSED and silence.seconds >= self._seconds
        }
