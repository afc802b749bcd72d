"""Everything that code, tests and docs refer to is there: behaviours, files, headings, modules
(tests/tidy/references.py).

After a file moved or a test was renamed: `python -m tests.tidy.references --write`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tidy import references


@pytest.mark.parametrize("check", references.CHECKS, ids=lambda check: check.__name__)
def test_every_reference_leads_somewhere(check: Callable[[], Iterator[str]]) -> None:
    lost = list(check())
    assert not lost, "\n".join(lost)


def test_the_pages_of_behaviours_name_the_tests_as_they_are() -> None:
    stale = [page for page in references.pages() if references.rewritten(page) != references.text_of(page)]
    assert not stale, f"run `python -m tests.tidy.references --write`: {stale}"


def test_every_number_is_there_once() -> None:
    found = [number for page in references.pages() for number in references.HEADING.findall(references.text_of(page))]
    assert len(found) == len(set(found))
    for kind, retired in (("S", ()), ("B", (67, 68, 69, 72))):
        taken = references.numbers_taken(kind)
        assert sorted([*taken, *retired]) == list(range(1, max(taken) + 1)), kind


def test_a_new_behaviour_gets_the_next_number() -> None:
    text = '### S-next\n\ndef test_snext_it_is_so(h):\n    """S-next, not B-next."""\nsnext'
    assert references.with_number(text, "S", 171) == (
        '### S-171\n\ndef test_s171_it_is_so(h):\n    """S-171, not B-next."""\nsnext'
    )
    assert references.with_number("test_bnext", "B", 77) == "test_b77"


@pytest.mark.parametrize(
    ("check", "text", "complaint"),
    [
        (references.unknown_numbers, "S-" + "999", "999 is no behaviour"),
        (references.documents_outside, "see DES" + "IGN section 1", "a document that is not in the repository"),
        (references.lost_files, "see engine/nothing.py", "no file, or more than one, is engine/nothing.py"),
        (references.lost_files, "see docs/design.md#nothing", "has no heading #nothing"),
        (references.lost_folders, "see engine/nothing for that", "there is no folder engine/nothing"),
        (references.lost_links, "[design](docs/designs.md)", "no file docs/designs.md"),
        (references.lost_links, "[design](docs/design.md#nothing)", "has no heading #nothing"),
        (references.lost_modules, "`rewindmq.engine.nothing`", "there is no rewindmq.engine.nothing"),
    ],
)
def test_a_planted_one_is_found(
    check: Callable[[], Iterator[str]], text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "planted.md"
    read = references.text_of
    monkeypatch.setattr(references, "sources", list)
    monkeypatch.setattr(references, "documents", lambda: [page])
    monkeypatch.setattr(references, "text_of", lambda name: text if name == page else read(name))
    references.prose_of.cache_clear()
    assert [line for line in check() if line.startswith(page) and complaint in line]
