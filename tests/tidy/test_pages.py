"""Pages of the docs are short enough to be read at one go."""

import pytest

from tests.tidy import references

MOST_WORDS = 1_500  # of a page that is read from its beginning
# Pages in which a reader looks one entry up.
REFERENCES = {
    "docs/benchmarks/brokers.md": "a line for each figure",
    "docs/decisions/README.md": "a line for each decision",
    "docs/differences.md": "an entry for each difference from RabbitMQ",
    "docs/glossary.md": "a line for each word",
    "docs/operators/alerts.md": "a section for each alert, to which the alert has a link",
    "docs/operators/configuration.md": "a line for each setting",
    "docs/spark/columns.md": "a line for each column",
}


def too_long(text: str) -> bool:
    return len(text.split()) > MOST_WORDS


def test_no_page_is_too_long() -> None:
    pages = [name for name in references.documents() if name.startswith("docs/")]
    assert len(pages) > 100, "no page is looked at"
    offenders = [name for name in pages if name not in REFERENCES and too_long(references.text_of(name))]
    assert not offenders, f"say less, or split them by subject: {offenders}"


def test_every_reference_that_may_be_long_exists() -> None:
    assert not REFERENCES.keys() - set(references.documents())


@pytest.mark.parametrize(("words", "long"), [(MOST_WORDS, False), (MOST_WORDS + 1, True)])
def test_a_page_that_is_too_long_is_found(words: int, long: bool) -> None:
    assert too_long("word \n" * words) == long
