"""Objects in a directory, as in any other store: created whole under a free name, never changed, listed in order."""

import io
import os
import pickle
import threading
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.objects import BadUrl, MissingObject, Objects, open_objects
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.projections import system_calls


def test_an_object_is_created_once_and_never_changed(objects: Objects) -> None:
    assert objects.create("a/b/one", b"first")
    assert not objects.create("a/b/one", b"second")
    assert objects.get("a/b/one") == b"first"
    assert objects.size("a/b/one") == 5
    file = io.BytesIO(b"content")
    file.read(3)
    assert objects.create("a/b/two", file)
    assert objects.get("a/b/two") == b"content"


def test_a_range_ends_with_the_object(objects: Objects) -> None:
    objects.create("one", b"0123456789")
    assert objects.get_range("one", 3, 6) == b"345"
    assert objects.get_range("one", 8, 20) == b"89"
    for start, end in ((10, 20), (50, 60), (4, 4)):
        assert objects.get_range("one", start, end) == b""


def test_a_large_object_is_read_in_pieces(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.keeping.archive.objects.PIECE_BYTES", 5)
    for size in (0, 4, 5, 12):
        objects.create(f"of-{size}", b"x" * size)
        pieces = list(objects.pieces(f"of-{size}"))
        assert b"".join(pieces) == b"x" * size
        assert all(len(piece) <= 5 for piece in pieces)


def test_what_is_not_there_is_named(objects: Objects) -> None:
    for ask in (objects.get, lambda key: objects.get_range(key, 0, 5), lambda key: list(objects.pieces(key))):
        with pytest.raises(MissingObject, match=r"archive/a/nothing: there is no such object"):
            ask("a/nothing")
    assert objects.size("a/nothing") is None


def test_keys_are_listed_in_order_and_without_half_files(objects: Objects, tmp_path: Path) -> None:
    for name in ("c", "a", "d", "b"):
        objects.create(f"p/{name}", b"")
    objects.create("pp/e", b"")
    (tmp_path / "archive" / "p" / ".b.half").write_bytes(b"")
    assert list(objects.list("p")) == ["p/a", "p/b", "p/c", "p/d"]
    assert list(objects.list("p", after="p/b")) == ["p/c", "p/d"]
    assert list(objects.list("nothing")) == []


def test_of_many_at_once_one_creates_it(objects: Objects) -> None:
    created: list[int] = []

    def create(number: int) -> None:
        if objects.create("one", b"%d" % number * 10_000):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = created
    assert objects.get("one") == b"%d" % winner * 10_000
    assert os.listdir(objects.url.removeprefix("file://")) == ["one"]


def test_a_disk_that_takes_nothing_leaves_nothing(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(system_calls, "sync", full)
        with pytest.raises(NoAnswer, match="No space left on device"):
            objects.create("a/one", b"x")
    assert list(objects.list("a")) == []
    assert objects.create("a/one", b"x")


def test_objects_are_sent_to_other_processes_without_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    objects = open_objects("s3://bucket/some/prefix/")
    sent = pickle.dumps(objects)
    assert pickle.loads(sent).url == objects.url == "s3://bucket/some/prefix"
    for text in (repr(objects), repr(sent), objects.place("key")):
        assert "the-secret" not in text
        assert "the-key" not in text


@pytest.mark.parametrize(
    ("url", "name", "value", "why"),
    [
        ("s3://bucket/x", "AWS_ENDPOINT_URL", "localhost:9000", "give the address of a server"),
        ("s3://bucket/x", "AWS_ENDPOINT_URL", "http://key:the-secret@host", "give the address of a server"),
        ("s3://bucket/x", "AWS_SESSION_TOKEN", "the-secret\n", "another character that a login cannot have"),
        ("s3://bucket/x", "AWS_ACCESS_KEY_ID", "the-secret\n", "another character that a login cannot have"),
        ("gs://bucket/x", "GOOGLE_BASE_URL", "not an address", "give the address of a server"),
        ("gs://bucket/x", "GOOGLE_BEARER_TOKEN", "the-secret\n", "another character that a login cannot have"),
        ("az://bucket/x", "AZURE_STORAGE_ENDPOINT", "http://", "give the address of a server"),
        ("az://bucket/x", "AZURE_STORAGE_SAS_TOKEN", "sig=the-secret\n", "another character that a login cannot have"),
    ],
)
def test_a_setting_that_would_end_the_process_is_refused(
    url: str, name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadUrl, match=f"^{name}: .*{why}") as refused:
        open_objects(url)
    assert "the-secret" not in str(refused.value)


def test_a_store_may_list_from_the_beginning(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's does, whatever offset it is asked for."""
    import obstore

    for name in ("a", "b", "c"):
        objects.create(f"p/{name}", b"")
    listed = obstore.list
    monkeypatch.setattr(obstore, "list", lambda store, prefix, offset: listed(store, prefix))
    assert list(objects.list("p", after="p/b")) == ["p/c"]


def test_a_directory_is_made_only_for_an_archiver(tmp_path: Path) -> None:
    with pytest.raises(BadUrl, match="no such directory"):
        open_objects(str(tmp_path / "a" / "b"))
    assert open_objects(f"file://{tmp_path}/a/b", make=True).url == f"file://{tmp_path}/a/b"
    assert open_objects(str(tmp_path / "a" / "b")).size("x") is None
