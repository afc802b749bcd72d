"""The bindings of a topic exchange as a trie of words, changed with each binding and never built again.

    a.b.c    a.*.c    a.#                  root --a--> n1 --b--> n2 --c--> [a.b.c]
    `*` stands for one word,                            |--*--> n3 --c--> [a.*.c]
    `#` for any number of them, also none               `--#--> [a.#]

A match walks along the words of the routing key with the set of all nodes that the words so far lead to. A node behind
`#` stays in the set. So a match visits each node at most once for each word, however many `#` the bindings have.
"""

from rewindmq.engine.routing.portions import PORTION, Search
from rewindmq.schemas.metadata_events import Bound


class Node:
    """A node of the trie. `rest` is its child for `#`; `stays` says that it is such a child itself."""

    __slots__ = ("bindings", "children", "rest", "star", "stays")

    def __init__(self, stays: bool) -> None:
        self.stays = stays
        self.children: dict[str, Node] = {}
        self.star: Node | None = None
        self.rest: Node | None = None
        self.bindings: dict[int, Bound] = {}  # by their places in the order of binding

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is bound at the node or below it."""
        return not (self.bindings or self.children) and self.star is None and self.rest is None

    def child(self, word: str) -> "Node | None":
        """Return the child for a word of a binding key."""
        return self.star if word == "*" else self.rest if word == "#" else self.children.get(word)

    def add_child(self, word: str) -> "Node":
        """Return the child for a word of a binding key, made if need be."""
        child = self.child(word)
        if child is None:
            child = Node(word == "#")
            if word == "*":
                self.star = child
            elif word == "#":
                self.rest = child
            else:
                self.children[word] = child
        return child

    def drop_child(self, word: str) -> None:
        """Forget the child for a word of a binding key."""
        if word == "*":
            self.star = None
        elif word == "#":
            self.rest = None
        else:
            del self.children[word]


class TopicTrie:
    """A topic exchange's bindings by the words of their keys."""

    def __init__(self) -> None:
        self.root = Node(False)

    def add(self, place: int, bound: Bound) -> None:
        """Add a binding. `place`: its place in the order of binding."""
        node = self.root
        for word in _pattern_of(bound.routing_key):
            node = node.add_child(word)
        node.bindings[place] = bound

    def remove(self, place: int, bound: Bound) -> None:
        """Remove a binding, and the nodes that only it needed."""
        words = _pattern_of(bound.routing_key)
        path = [self.root]
        for word in words:
            child = path[-1].child(word)
            if child is None:
                return
            path.append(child)
        path[-1].bindings.pop(place, None)
        while words and path.pop().is_empty:
            path[-1].drop_child(words.pop())

    def match(self, routing_key: str) -> Search[list[Bound]]:
        """Find the bindings that match, in the order of their places."""
        spent = 0
        nodes = [self.root] if self.root.rest is None else [self.root, self.root.rest]
        for word in words_of(routing_key):
            reached: dict[Node, None] = {}
            for first in range(0, len(nodes), PORTION):
                for node in nodes[first : first + PORTION]:
                    if node.stays:
                        reached[node] = None
                    for child in (node.children.get(word), node.star):
                        if child is not None:
                            reached[child] = None
                            if child.rest is not None:
                                reached[child.rest] = None
                spent += min(len(nodes) - first, PORTION)
                if spent >= PORTION:
                    yield spent
                    spent = 0
            nodes = list(reached)
        found: dict[int, Bound] = {}
        for node in nodes:
            found.update(node.bindings)
            spent += 1 + len(node.bindings)
            if spent >= PORTION:
                yield spent
                spent = 0
        yield spent
        return [found[place] for place in sorted(found)]


def words_of(key: str) -> list[str]:
    """Return the words of a key. An empty key has none (rabbit_db_topic_exchange.erl `split_topic_key/1`)."""
    return key.split(".") if key else []


def _pattern_of(binding_key: str) -> list[str]:
    """Return the words of a binding key. Of several `#` in a row one is enough."""
    words = words_of(binding_key)
    return [word for at, word in enumerate(words) if word != "#" or words[at - 1 : at] != ["#"]]
