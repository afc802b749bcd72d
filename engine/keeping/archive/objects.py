"""The archive's object storage: S3, Google Cloud Storage, Azure, or a local directory.

    objects = open_objects("s3://bucket/prefix")       gs://, az://, file:///DIR, or a plain path
    objects.create(key, data)                          False: an object of that name already exists
    objects.get_range(key, start, end)

- An object is created whole, under a free name, and is never changed, so two archivers cannot harm each other.
- Credentials and endpoints are read from the environment, under the names of the store's own tools (AWS_REGION,
  AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT ...). A URL holds none, so it may be printed.
- In a directory an object is durable when `create` returns: it is written under another name, synced and linked.
"""

import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from urllib.parse import urlsplit

from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.projections import system_calls

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

SCHEMES: Final = ("s3", "gs", "az")
# The variables that name a server other than the store's own, by scheme; the first one that is set applies.
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
PIECE_BYTES: Final = 4 << 20
# An object may be large and the line slow, yet an unreachable store should be noticed within seconds.
_CLIENT: Final = {"timeout": timedelta(minutes=5), "connect_timeout": timedelta(seconds=5)}
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(minutes=1)}
_STATUS: Final = re.compile(r"status code: (\d{3}[\w ]*)")
_ERROR_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
# Variables of a scheme's client; those that go into headers unchanged; and the form of an endpoint.
_PREFIXES: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_IN_HEADERS: Final = re.compile(r"TOKEN$|KEY_ID$|SAS|REGION$|ACCOUNT_NAME$")
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]+(?:/[A-Za-z0-9.\-_~/]*)?")
_MISSING: Final = ("NoSuchKey", "BlobNotFound")  # a missing object; other things not found are a bucket or a login
_REFUSALS: Final = ("HTTP 401", "HTTP 403", "HTTP 404")


class ArchiveError(LogError):
    """The archive cannot be used as requested; the text names its URL and the object."""


class MissingObject(ArchiveError):
    """There is no such object."""


class BadUrl(ArchiveError):
    """The URL does not name an archive."""


class ObstoreNotInstalled(ArchiveError):
    """This installation has no client for object storage."""


class Objects:
    """The objects below one URL. Keys are names with slashes, relative to it."""

    def __init__(self, url: str, store: "ObjectStore", directory: Path | None = None) -> None:
        """Use the objects of a store. `directory`: where a local `store` keeps them."""
        self.url = url
        self._store = store
        self._directory = directory

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    def __reduce__(self) -> tuple[Callable[[str], "Objects"], tuple[str]]:
        return open_objects, (self.url,)

    def place(self, key: str) -> str:
        """Return the object's place, for people."""
        return f"{self.url}/{key}"

    def create(self, key: str, data: bytes | BinaryIO) -> bool:
        """Store an object: these bytes, or a file from its beginning. S3 accepts up to 5 GB.

        A file is sent from the page cache and takes no memory of the process. There is no upload in parts, because that
        could not be refused for a taken name.
        Returns False if an object of this name already exists, which is left unchanged. Raises NoAnswer."""
        if not isinstance(data, bytes):
            data.seek(0)
        if self._directory is not None:
            return self._create_file(self._directory / key, data)
        import obstore
        from obstore.exceptions import AlreadyExistsError

        sent = data if isinstance(data, bytes) else _mapped(data)

        def put() -> bool:
            try:
                obstore.put(self._store, key, sent, mode="create")
            except AlreadyExistsError:
                return False
            return True

        try:
            return self._asked(key, put)
        except MissingObject:
            raise NoAnswer(f"{self.place(key)}: the store refuses (HTTP 404): check bucket and login") from None

    def get(self, key: str) -> bytes:
        """Return all bytes of an object.

        Raises MissingObject, NoAnswer."""
        import obstore

        return self._asked(key, lambda: obstore.get(self._store, key).bytes().to_bytes())

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end` (exclusive): fewer, or none, if the object ends earlier.

        Raises MissingObject, NoAnswer."""
        import obstore

        if start >= end:
            return b""
        try:
            return self._asked(key, lambda: obstore.get_range(self._store, key, start=start, end=end).to_bytes())
        except NoAnswer:
            size = self.size(key)
            if size is not None and size <= start:  # a store refuses a range after the end of an object
                return b""
            raise

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield all bytes of an object, which may be large, in pieces.

        Raises MissingObject, NoAnswer."""
        at = 0
        while piece := self.get_range(key, at, at + PIECE_BYTES):
            yield piece
            at += len(piece)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if there is none.

        Raises NoAnswer."""
        import obstore

        try:
            return self._asked(key, lambda: int(obstore.head(self._store, key)["size"]))
        except MissingObject:
            return None

    def delete(self, key: str) -> None:
        """Delete an object, if it exists.

        Raises NoAnswer, also if the store refuses because a permission is missing or the object is locked."""
        if self._directory is not None:
            path = self._directory / key
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise NoAnswer(f"{path}: it cannot be deleted ({error.strerror})") from None
            return
        import obstore

        with suppress(MissingObject):
            self._asked(key, lambda: obstore.delete(self._store, key))

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys below `prefix`, a folder, in order, from after the key `after`.

        Raises NoAnswer."""
        import obstore

        def listed() -> list[str]:
            pages = obstore.list(self._store, prefix, offset=after or None)
            return [each["path"] for page in pages for each in page]

        # A directory lists names unordered, and may hold half a file after a crash. A store may treat the offset as a
        # mere hint, as Azure's does.
        keys = self._asked(prefix, listed)
        yield from sorted(key for key in keys if key > after and not key.rpartition("/")[2].startswith("."))

    def _asked(self, key: str, ask: Callable[[], T]) -> T:
        """Return the answer of the store; convert its errors to ours."""
        from obstore.exceptions import BaseError, NotFoundError

        place = self.place(key)
        try:
            return ask()
        except (BaseError, OSError) as error:
            code = _ERROR_CODE.search(str(error))
            if isinstance(error, NotFoundError | FileNotFoundError) and (code is None or code[1] in _MISSING):
                raise MissingObject(f"{place}: there is no such object") from None
            reason = _reason(error)
            if reason.startswith(_REFUSALS):
                raise NoAnswer(f"{place}: the store refuses ({reason}): check bucket and login") from None
            raise NoAnswer(f"{place}: the store does not answer ({reason}): try again later") from None

    def _create_file(self, path: Path, data: bytes | BinaryIO) -> bool:
        """Create an object in a directory. obstore's own way is also atomic, but syncs nothing."""
        try:
            _make_directories(path.parent)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    shutil.copyfileobj(data, file)
                file.flush()
                os.fchmod(file.fileno(), 0o640)
                system_calls.sync(file.fileno())
                try:
                    os.link(file.name, path)
                except FileExistsError:
                    return False
            system_calls.sync_directory(path.parent)
        except OSError as error:
            raise NoAnswer(
                f"{path}: the archive cannot be written ({error.strerror}): it needs room and the right to write"
            ) from None
        return True


def open_objects(url: str, make: bool = False) -> Objects:
    """Return the object storage at a URL, without a request to it. `make`: create a missing directory.

    Raises BadUrl, ObstoreNotInstalled."""
    parts = urlsplit(url)
    if parts.scheme and "://" in url and parts.scheme not in (*SCHEMES, "file"):
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadUrl(f"{parts.scheme}://: an archive is at {known}, file:///DIR, or a path of a directory")
    if "://" in url and (parts.username is not None or parts.query or parts.fragment):
        raise BadUrl("the URL of an archive holds no credentials or options: give them in the environment")
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ModuleNotFoundError:
        why = "an archive needs obstore, not installed here: pip install 'rewindmq[archive]'"
        raise ObstoreNotInstalled(why) from None
    if parts.scheme == "file" or "://" not in url:
        directory = Path(parts.path if parts.scheme == "file" else url).absolute()
        try:
            if make:
                _make_directories(directory)
            if not directory.is_dir():
                raise BadUrl(f"{directory}: no such directory, and no archive")
        except OSError as error:
            raise BadUrl(f"{directory}: {error.strerror}") from None
        try:
            return Objects(f"file://{directory}", LocalStore(directory), directory)
        except BaseError as error:
            raise BadUrl(f"{directory}: {_reason(error)}") from None
    url = url.rstrip("/")
    if not parts.netloc:
        raise BadUrl(f"{url}: no bucket is named")
    _require_sound_environment(parts.scheme)
    options: dict[str, Any] = dict(_CLIENT)
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS[parts.scheme])), "")
    if endpoint.startswith("http://"):
        options["allow_http"] = True  # the endpoint itself decides
    try:
        store: Any = from_url(url, client_options=options, retry_config=_RETRIES)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise BadUrl(f"{url}: {_reason(error)}") from None
    return Objects(url, store)


def _require_sound_environment(scheme: str) -> None:
    """Raise BadUrl for a value that no request can hold, because the client would end the process."""
    for name, value in os.environ.items():
        if not name.startswith(_PREFIXES[scheme]):
            continue
        if name in _ENDPOINTS[scheme] and value and not _ENDPOINT.fullmatch(value):
            raise BadUrl(f"{name}: give the address of a server, such as https://HOST:PORT")
        if _IN_HEADERS.search(name) and not (value.isascii() and value.isprintable()):
            raise BadUrl(f"{name}: it has a line break or another character that a login cannot have")


def _mapped(file: BinaryIO) -> mmap.mmap | bytes:
    """Return all bytes of a file, because obstore would read it into memory and copy it there once more."""
    size = file.seek(0, os.SEEK_END)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


def _reason(error: Exception) -> str:
    """Return a store's error in a few words.

    The store's own texts have many lines, and some contain the values that signed the login."""
    text = str(error)
    if status := _STATUS.search(text):
        code = _ERROR_CODE.search(text)
        return f"HTTP {status[1].strip()}" + (f", {code[1]}" if code else "")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return text.partition("\n")[0].strip().rpartition(" - ")[2][:200]


def _make_directories(directory: Path) -> None:
    """Make a directory and its parents, durably."""
    if not directory.is_dir():
        _make_directories(directory.parent)
        directory.mkdir(exist_ok=True)
        system_calls.sync_directory(directory.parent)
