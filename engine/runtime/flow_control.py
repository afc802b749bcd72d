"""Flow control: a connection that publishes is not read from while enough is on its way into the log.

Rules of this file
- A connection that only consumes never waits: its acks make room. Precedent: RabbitMQ's credit flow.
- First come, first served.
- What is enough depends on the log: engine/embedded/flow_control.py, engine/cluster/flow_control.py.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable


class Flow(ABC):
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Enough is on its way."""

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called once, when there is room again."""
        self._waiting.append(go_on)

    def landed(self) -> None:
        """More of what was on its way has arrived."""
        for _ in range(len(self._waiting)):  # a connection that publishes too much once more waits at the end
            if self.full:
                return
            self._waiting.popleft()()
