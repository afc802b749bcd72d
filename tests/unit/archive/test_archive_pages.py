"""Pages make reading a manifest cheap, and never make it another one: a missing or wrong page is passed over."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import manifest as manifests
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.manifest import Manifest, SegmentEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.engine.keeping.archive.pages import page_key
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.projections import system_calls
from tests.support.archiving import segment_entry, snapshot_entry
from tests.support.examples import examples

SMALL = 8  # entries of a page and the one that proves it


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "ENTRIES", SMALL)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that were fetched, and the folders that were listed."""
    requests: list[str] = []
    get, listing = Objects.get, Objects.list

    def noted_get(self: Objects, key: str) -> bytes:
        requests.append(key)
        return get(self, key)

    def noted_list(self: Objects, prefix: str, after: str = "") -> object:
        requests.append(prefix)
        return listing(self, prefix, after)

    monkeypatch.setattr(Objects, "get", noted_get)
    monkeypatch.setattr(Objects, "list", noted_list)
    return requests


def next_segment(manifest: Manifest) -> SegmentEntry:
    return segment_entry(manifest.end, manifest.chain, bytes([manifest.end // 10 % 251 + 1]) * 32)


def fill(objects: Objects, count: int) -> Manifest:
    """Add entries until there are this many: segments, and a snapshot after each third one."""
    manifest = Manifest.load(objects, "queues-0")
    for number in range(len(manifest.segments) + len(manifest.snapshots), count):
        if number % 4 == 3:
            manifest.extend(snapshot_entry(number))
        else:
            manifest.extend(next_segment(manifest))
    return manifest


def same(one: Manifest, other: Manifest) -> bool:
    return (one.segments, one.snapshots, one.end) == (other.segments, other.snapshots, other.end)


def page_path(objects: Objects, number: int) -> Path:
    return Path(objects.url.removeprefix("file://")) / page_key("queues-0", number)


@pytest.mark.long
def test_an_archive_of_10_000_segments_opens_with_some_hundred_requests(
    objects: Objects, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # the entries are written to be read
        patch.setattr(system_calls, "sync", lambda descriptor: None)
        written = Manifest.load(objects, "queues-0")
        for _ in range(10_000):
            written.extend(next_segment(written))
    asked.clear()
    opened = Manifest.load(objects, "queues-0")
    assert same(opened, written)
    assert len(opened.segments) == 10_000
    # 39 pages with the entry that proves each, the 16 entries behind them, and the list
    assert len(asked) == 39 + 39 + 16 + 1
    asked.clear()
    opened.refresh()
    assert asked == ["queues-0/manifest"]
    written.extend(next_segment(written))
    asked.clear()
    opened.refresh()
    assert asked == ["queues-0/manifest", "queues-0/manifest/0000010000.json"]


@pytest.mark.parametrize("count", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL - 1, 3 * SMALL, 50])
def test_it_is_the_same_manifest_with_pages_and_without(count: int, small: None, objects: Objects) -> None:
    written = fill(objects, count)
    single = Manifest(objects, "queues-0", use_pages=False)
    single.refresh()
    assert same(Manifest.load(objects, "queues-0"), written)
    assert same(single, written)
    assert len(list(objects.list("queues-0/pages"))) == count // SMALL
    assert all(page_path(objects, number).read_bytes() == written.page(number) for number in range(count // SMALL))


@pytest.mark.parametrize("known", range(1, 2 * SMALL + 2))
def test_a_refresh_asks_only_for_what_is_new(known: int, small: None, objects: Objects, asked: list[str]) -> None:
    fill(objects, known)
    reader = Manifest.load(objects, "queues-0")
    written = fill(objects, 5 * SMALL + 3)
    asked.clear()
    reader.refresh()
    assert same(reader, written)
    assert len(set(asked)) == len(asked) <= 1 + (SMALL - known % SMALL) + 2 * 5 + 3
    assert not {f"queues-0/manifest/{number:010d}.json" for number in range(known)} & set(asked)


def test_pages_that_are_missing_are_made_by_the_next_one_who_extends(small: None, objects: Objects) -> None:
    """After a crash, and in an archive that a version without pages has begun."""
    fill(objects, 3 * SMALL)
    pages = [page_path(objects, number) for number in range(3)]
    stored = [path.read_bytes() for path in pages]
    for path in pages:
        path.unlink()
    written = fill(objects, 3 * SMALL + 1)
    assert [path.read_bytes() for path in pages] == stored
    assert same(Manifest.load(objects, "queues-0"), written)


def wrong_pages() -> dict[str, Callable[[list[bytes]], list[bytes]]]:
    return {
        "empty": lambda entries: [],
        "an entry less": lambda entries: entries[:-1],
        "without the first": lambda entries: entries[1:],
        "one twice": lambda entries: [*entries, entries[-1]],
        "the last one changed": lambda entries: [*entries[:-1], entries[-1].replace(b"99", b"98")],
        "two exchanged": lambda entries: [entries[1], entries[0], *entries[2:]],
        "not JSON": lambda entries: [b"\xff\n"] * len(entries),
        "other JSON": lambda entries: [b"[]\n"] * len(entries),
    }


@pytest.mark.parametrize("harm", wrong_pages())
def test_a_wrong_page_is_passed_over_and_named(harm: str, small: None, objects: Objects, asked: list[str]) -> None:
    written = fill(objects, 3 * SMALL)
    path = page_path(objects, 1)
    whole = path.read_bytes()
    path.write_bytes(b"".join(wrong_pages()[harm](whole.splitlines(keepends=True))))
    asked.clear()
    assert same(Manifest.load(objects, "queues-0"), written)
    assert len(asked) <= 1 + 2 * 2 + SMALL + 2  # its own entries are read one by one, and no others
    [error] = [error for entry, error in verify(objects, "queues-0") if entry is None]
    assert path.name in str(error)
    assert "pages" in str(error)
    path.unlink()
    fill(objects, 3 * SMALL + 1)
    assert path.read_bytes() == whole


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), number=st.integers(0, 1))
def test_a_page_with_a_changed_byte_changes_nothing(
    at: float, bit: int, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "ENTRIES", SMALL)
        objects = open_objects(str(tmp_path_factory.mktemp("archive")))
        written = fill(objects, 2 * SMALL + 1)
        path = page_path(objects, number)
        page = bytearray(path.read_bytes())
        page[int(at * len(page))] ^= 1 << bit
        path.write_bytes(page)
        assert same(Manifest.load(objects, "queues-0"), written)
        assert any(path.name in str(error) for entry, error in verify(objects, "queues-0") if entry is None)


def test_an_entry_that_is_gone_is_named_though_a_page_has_it(small: None, objects: Objects) -> None:
    fill(objects, 2 * SMALL)
    (Path(objects.url.removeprefix("file://")) / "queues-0/manifest/0000000003.json").unlink()
    with pytest.raises(ArchiveError, match=r"0000000003\.json: this entry is gone"):
        Manifest.load(objects, "queues-0")


def test_a_store_that_is_away_is_not_a_missing_page(
    small: None, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(objects, 2 * SMALL)
    get = Objects.get

    def away(self: Objects, key: str) -> bytes:
        if "/pages/" in key:
            raise NoAnswer(f"{key}: the store does not answer")
        return get(self, key)

    monkeypatch.setattr(Objects, "get", away)
    with pytest.raises(NoAnswer, match="pages"):
        Manifest.load(objects, "queues-0")
