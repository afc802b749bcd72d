"""Every name that a release promised is there still (docs/stability.md).

`make release` writes the names; a name that goes away was announced as deprecated by an earlier minor version."""

import json
import re

import pytest

import rewindmq
from tests.support import promises
from tests.support.needs import require_pure
from tests.tidy import references

PAGE = "docs/stability.md"


@pytest.fixture(scope="module")
def today() -> dict[str, set[str]]:
    require_pure("schemas are made of the types of fields, and a compiled class does not keep them whole")
    return promises.promises()


def test_what_a_release_promised_is_there(today: dict[str, set[str]]) -> None:
    if rewindmq.__version__ == "0.1.0":  # which was no release: `make release` writes the first file
        assert not promises.FILE.exists()
        return
    broken = promises.broken(promises.read(promises.FILE.read_text()), today)
    assert not broken, "released names are gone, or have another type:\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ("rewindmq list_queues", "exists"),
        ("rewindmq rewind", "--at"),
        ("rewindmq spark audit", "--format"),
        ("settings", "keep_history"),
        ("exit codes", "65 DATA"),
        ("output urn:rewindmq:output:outcome:1 Outcome", ".partition string"),
        ("http GET /api/queues/{vhost}/{queue}/at", "exists"),
        ("http GET /api/queues/{vhost}/{queue}/at", "status 200"),
        ("http GET /api/queues", "parameter listing_columns"),
        ("http Mark", ".time string"),
        ("metrics", "rewindmq_log_lag_events"),
        ("table history", "message_id long"),
        ("view events", "startingOffsets"),
        ("rewindmq.spark", "state_at"),
        ("rewindmq.schemas.producer Publisher.record", "message_id"),
        ("rewindmq.schemas.producer Record", "value"),
    ],
)
def test_a_name_that_goes_away_is_found(today: dict[str, set[str]], thing: str, name: str) -> None:
    released = promises.read(promises.text_of(today))
    assert promises.broken(released, today) == []
    assert promises.broken(released, today | {thing: today[thing] - {name}}) == [f"{thing}: {name}"]
    assert f"{thing}: {name}" in promises.broken(released, {key: of for key, of in today.items() if key != thing})


def test_a_new_name_breaks_nothing(today: dict[str, set[str]]) -> None:
    released = {thing: names - {min(names)} for thing, names in today.items()}
    assert promises.broken(released, today) == []


def test_nothing_is_promised_about_paths_between_our_programs(today: dict[str, set[str]]) -> None:
    promised = json.dumps(sorted(today))
    assert "/api/queues" in promised
    assert not [path for path in promises.BETWEEN_OUR_PROGRAMS if f" {path}" in promised]


def test_the_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", references.text_of(PAGE)))
    assert "test_stability.py" in named
    assert not {name for name in named if name not in references.by_name()}
