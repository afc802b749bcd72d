"""The trie of a topic exchange: it finds what the definition says after any changes, at a bounded cost."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.routing import portions
from rewindmq.engine.routing.portions import to_the_end
from rewindmq.engine.routing.topic_trie import Node, TopicTrie
from rewindmq.schemas.metadata_events import Bound

WORDS = st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=5).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=6).map(".".join)


def bound(key: str, queue: str = "q") -> Bound:
    return Bound("/", "x", "queue", queue, key)


def is_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """The definition."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(is_match(pattern[1:], words[taken:]) for taken in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and is_match(pattern[1:], words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


def nodes_of(node: Node) -> int:
    children = [*node.children.values(), *(child for child in (node.star, node.rest) if child is not None)]
    return 1 + sum(nodes_of(child) for child in children)


def cost(trie: TopicTrie, key: str) -> int:
    return sum(trie.match(key))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), WORDS), max_size=40), st.lists(KEYS, max_size=6))
def test_it_finds_what_the_definition_says_after_any_changes(
    changes: list[tuple[bool, int, str]], keys: list[str]
) -> None:
    trie, there = TopicTrie(), dict[int, Bound]()
    for place, (adds, number, key) in enumerate(changes):
        if adds or not there:
            there[place] = bound(key, f"q{number}")
            trie.add(place, there[place])
        else:
            gone = list(there)[number % len(there)]
            trie.remove(gone, there.pop(gone))
    for key in keys:
        expected = [each for _, each in sorted(there.items()) if is_match(split(each.routing_key), split(key))]
        assert to_the_end(trie.match(key)) == expected
    for place, each in list(there.items()):
        trie.remove(place, each)
    assert trie.root.is_empty


def test_a_match_visits_each_node_at_most_once_for_each_word() -> None:
    trie = TopicTrie()
    for place in range(300):
        trie.add(place, bound(".".join(["#", "a"] * 60) + f".#.z{place}"))
    for words in (1, 30, 120):
        assert cost(trie, ".".join(["a"] * words)) <= (words + 1) * nodes_of(trie.root)


def test_the_cost_does_not_grow_with_bindings_of_other_words() -> None:
    trie = TopicTrie()
    trie.add(0, bound("a.*.c"))
    before = cost(trie, "a.b.c")
    for place in range(1, 5_000):
        trie.add(place, bound(f"k.{place}.#"))
    assert cost(trie, "a.b.c") == before


def test_a_costly_match_comes_in_small_portions() -> None:
    dice, trie = Random(7), TopicTrie()
    for place in range(500):
        trie.add(place, bound(".".join(dice.choice(["#.a", "a.#", "#.*", "*.#"]) for _ in range(30)) + f".z{place}"))
    parts = list(trie.match(".".join(["a"] * 60)))
    assert sum(parts) > 10 * portions.SLICE
    assert max(parts) <= 2 * portions.PORTION


def test_a_binding_that_goes_during_a_match_disturbs_nothing() -> None:
    trie = TopicTrie()
    there = {place: bound(f"#.a.#.{place}", f"q{place}") for place in range(3_000)}
    for place, each in there.items():
        trie.add(place, each)
    trie.add(-1, bound("#"))
    search = trie.match(".".join(["a"] * 50))
    next(search)
    for place, each in there.items():
        trie.remove(place, each)
    assert bound("#") in to_the_end(search)
    assert nodes_of(trie.root) == 2
