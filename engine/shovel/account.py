"""The messages between a source and a destination, while one pair of connections stands.

Each message has a tag: the first has 1, the next 2. The source numbers its deliveries so on a channel with one
consumer, and the destination its confirms. So one tag is the message's name on both sides.

    take -> on the way -> arrived   (the destination confirmed it: the source may forget it)
                       -> refused   (nacked or returned: the source keeps it)

Rules of this file
- Pure: no clock, no sockets.
- The source is acked up to the first message that has not arrived, with one ack for many. A message behind that one
  waits, so that a connection that is lost brings the source's queue back in its order.
- Only `rest`, at the end, acks messages behind one that was refused.
"""


class TransferAccount:
    def __init__(self) -> None:
        self.taken = 0  # the tag of the last message that was published
        self.acked = 0  # the source is acked up to this tag
        self._on_the_way: dict[int, int] = {}  # tag -> what identifies the message when it comes back
        self._arrived: set[int] = set()  # behind one that has not
        self.refused: set[int] = set()

    @property
    def on_the_way(self) -> int:
        """The number of messages that the destination has not answered yet."""
        return len(self._on_the_way)

    def take(self, look: int) -> int:
        """A message is published. `look`: equal for messages that look the same. Returns its tag."""
        self.taken += 1
        self._on_the_way[self.taken] = look
        return self.taken

    def confirm(self, tag: int, multiple: bool) -> None:
        """The destination confirms a message, or (`multiple`) all up to it."""
        self._arrived.update(each for each in self._answered(tag, multiple) if each not in self.refused)

    def nack(self, tag: int, multiple: bool) -> None:
        """The destination refuses a message, or all up to it."""
        self.refused.update(self._answered(tag, multiple))

    def unroutable(self, look: int) -> None:
        """The destination returned a message, which it confirms later: the first that looks so, and is not refused.

        If none looks so, a broker on the way has changed it: any of those on the way may be the one, and all stay."""
        for tag, known in self._on_the_way.items():
            if known == look and tag not in self.refused:
                self.refused.add(tag)
                return
        self.refused.update(self._on_the_way)

    def ack_up_to(self) -> int | None:
        """Return the tag up to which the source may be acked now, if it is a new one."""
        first = min(next(iter(self._on_the_way), self.taken + 1), min(self.refused, default=self.taken + 1))
        if first - 1 <= self.acked:
            return None
        self.acked = first - 1
        self._arrived = {tag for tag in self._arrived if tag > self.acked}
        return self.acked

    def rest(self) -> list[int]:
        """At the end: the tags of messages that arrived behind one that did not, each to be acked by itself."""
        rest, self._arrived = sorted(self._arrived), set()
        return rest

    def _answered(self, tag: int, multiple: bool) -> list[int]:
        tags = [tag] if tag in self._on_the_way else []
        if multiple:
            tags = []
            for each in self._on_the_way:  # in the order of their tags
                if each > tag:
                    break
                tags.append(each)
        for each in tags:
            del self._on_the_way[each]
        return tags
