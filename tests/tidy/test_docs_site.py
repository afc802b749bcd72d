"""Every page of the repository has one place in the tree of the docs, which the site and llms.txt show."""

from collections import Counter

from tests.support.docs_site.navigation import FRONT, INDEX, tree
from tests.tidy import references


def test_a_newcomer_finds_every_page() -> None:
    """docs/README.md links each page, or an index of a folder does that it links."""
    found = Counter(page.name for branch in tree() for page in branch.walk())
    pages = {name for name in references.files() if name.endswith(".md")} - {FRONT, INDEX}
    assert pages - found.keys() == set(), "no index has a link to these"
    assert found.keys() - pages == set()
    assert set(found.values()) == {1}


def test_every_page_has_a_title() -> None:
    assert not [page.name for branch in tree() for page in branch.walk() if not page.title]


def test_the_branches_are_the_readers() -> None:
    assert [branch.title for branch in tree()] == [
        "I send messages",
        "I look back",
        "I audit",
        "I work on RewindMQ",
        "References",
    ]
