"""The audit's account of priorities (S-101 to S-108): the level of each message, and how many are ready in each.

classic, x-max-priority    the highest level with a ready message is served
quorum, rabbitmq-4.3       returned messages are served first, in whatever order; then the same
"""

from rewindmq.schemas.events import QueueDeclared


class Levels:
    """The levels of one queue. `highest` None: it has no priorities, nothing is kept, all messages are of level 0."""

    def __init__(self, highest: int | None, default: int, returned_first: bool) -> None:
        self.highest = highest
        self.default = default
        self.returned_first = returned_first
        self.level_of: dict[int, int] = {}  # every message that is in the queue
        self.ready: dict[int, None] = {}  # of these, those that are ready by their level
        self.back: dict[int, None] = {}  # and those that are ready because they came back
        self.counts: dict[int, int] = {}  # level -> how many are ready by it

    @classmethod
    def of(cls, declared: QueueDeclared, later: bool) -> "Levels":
        """Return the empty levels of a queue. `later`: it is of profile rabbitmq-4.3."""
        if later:
            return cls(31, 4, True)
        asked = next((each.value for each in declared.arguments if each.name == "x-max-priority"), None)
        if declared.type != "classic" or type(asked) is not int:
            return cls(None, 0, False)
        return cls(min(max(asked, 1), 255), 0, False)

    def level(self, message_id: int) -> int:
        """Return the level of a message in the queue."""
        return self.level_of.get(message_id, 0)

    def enters(self, message_id: int, priority: int | None, returned: bool) -> None:
        """Add a message that the queue took in. `returned`: it came back before, in another partition."""
        if self.highest is not None:
            level = self.default if priority is None else min(max(priority, 0), self.highest)
            self.believe(message_id, level, True, returned)

    def believe(self, message_id: int, level: int, ready: bool, returned: bool) -> None:
        """Take a message for one of this level in the queue. `returned`: it came back."""
        self.level_of[message_id] = level
        if ready and returned:
            self.ready_again(message_id)
        elif ready:
            self._take_place(message_id)

    def ready_again(self, message_id: int) -> None:
        """Note that a delivered message is ready again."""
        if self.highest is None:
            return
        if self.returned_first:
            self.back[message_id] = None
        else:
            self._take_place(message_id)

    def delivered(self, message_id: int) -> str | None:
        """Note that a message is no longer ready. Returns what is wrong with its turn, or None."""
        if self.highest is None:
            return None
        by_level = message_id in self.ready
        above = max((level for level, count in self.counts.items() if count), default=0)
        back = len(self.back)
        self._not_ready(message_id)
        if by_level and back:
            return f"delivered before {back} that came back"
        level = self.level(message_id)
        return f"delivered before one of priority {above}, being of {level}" if by_level and level < above else None

    def leaves(self, message_id: int) -> None:
        """Remove a message from the queue."""
        if self.highest is not None:
            self._not_ready(message_id)
            del self.level_of[message_id]

    def _take_place(self, message_id: int) -> None:
        """Note that a message is ready by its level."""
        self.ready[message_id] = None
        level = self.level_of[message_id]
        self.counts[level] = self.counts.get(level, 0) + 1

    def _not_ready(self, message_id: int) -> None:
        self.back.pop(message_id, message_id)
        if self.ready.pop(message_id, message_id) is None:
            self.counts[self.level_of[message_id]] -= 1
