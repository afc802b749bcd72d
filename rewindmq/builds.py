"""The two builds of one source: pure (Python runs the .py files) and compiled (mypyc made extension modules of some).

    builds.running().kind       "pure" or "compiled"
    str(builds.running())       "compiled (4 modules, mypy 2.4.1, 2026-11-23T08:00:00Z)", "pure (REWINDMQ_PURE is set)"

    rewindmq/compiled/manifest.json             what was compiled, from which sources, for which Python
    rewindmq/compiled/MODULE.SUFFIX             a compiled module: a shim, which calls the library
    rewindmq/compiled/rewindmq_ID__mypyc.SUFFIX the library: the code of all compiled modules
    rewindmq/compiled/not_compiled.txt          instead of all these: why an installation could not compile

`rewindmq/compiler.py` writes this directory; nothing else does. docs/development/builds.md says how to use it.

Rules of this file
- A process runs one build: either each module of the manifest is compiled, or each is pure. `rewindmq/__init__.py`
  decides that once, before any other module is imported.
- A compiled build runs only if its sources are those that are here now. If a source is another one, or the build is
  for another Python, or a file of it is missing, the pure build runs, and `running().unused` says why. Such a source
  need not be compiled itself: mypyc writes constants of imported modules into the code, too.
- If the directory changes while the process runs, the next import of a compiled module fails. It does not fall back.
- It runs at each import of RewindMQ, so it needs only the standard library, and some milliseconds.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import NamedTuple, TypedDict, cast

PACKAGE = os.path.dirname(os.path.abspath(__file__))
DIRECTORY = "compiled"
MANIFEST = "manifest.json"
NOTE = "not_compiled.txt"
FORMAT = 1  # of the manifest
SUFFIX = EXTENSION_SUFFIXES[0]  # it names the Python version and the platform: .cpython-311-x86_64-linux-gnu.so
SWITCH = "REWINDMQ_PURE"
PURE, COMPILED = "pure", "compiled"


class BuildManifest(TypedDict):
    """The facts that `rewindmq/compiler.py` writes about a compiled build.

    `modules`: the size in bytes of each file, by the module that it is; the library is one of them. `sources`: the
    SHA-256 of each source, by its path in the package: of the compiled modules, and of all that they import of ours."""

    format: int
    suffix: str
    python: str
    mypy: str
    built: str
    modules: dict[str, int]
    sources: dict[str, str]


class Build(NamedTuple):
    """A build.

    `reason`: facts about it, or why it runs. `unused`: why the compiled build that is here does not run, and what to
    do; else empty."""

    kind: str
    reason: str = ""
    unused: str = ""

    def __str__(self) -> str:
        reason = self.reason or self.unused
        return f"{self.kind} ({reason})" if reason else self.kind


class CompiledModule(ExtensionFileLoader):
    """Loads an extension module. Tracebacks get the lines of its source here, wherever the program runs."""

    def exec_module(self, module: ModuleType) -> None:
        """Finish the module. mypyc has named another loader in it, one that has no source."""
        super().exec_module(module)
        module.__loader__ = self

    def get_source(self, fullname: str) -> str | None:  # type: ignore[override]  # typeshed: never any source
        """The text of the module's source; None if it is gone."""
        path = os.path.join(PACKAGE, *fullname.split(".")[1:]) + ".py"
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError:
            return None


class CompiledModules:
    """Finds the modules of a manifest in its directory. It goes without importlib's base class of finders, whose import
    takes 10 ms."""

    def __init__(self, directory: str, manifest: BuildManifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._stamp = _stamp(directory)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The extension module of this name; None for a module that is not compiled. Raises ImportError."""
        if fullname not in self.manifest["modules"]:
            return None
        if _stamp(self.directory) != self._stamp:
            text = f"{self.directory} changed while this process ran: a process does not mix two builds; start it again"
            raise ImportError(text, name=fullname)
        file = _file_of(self.directory, fullname)
        return spec_from_file_location(fullname, file, loader=CompiledModule(fullname, file))


_running = Build(PURE)


def running() -> Build:
    """The build that this process runs."""
    return _running


def start() -> None:
    """Decide which build this process runs. `rewindmq/__init__.py` calls it once."""
    global _running
    directory = os.path.join(PACKAGE, DIRECTORY)
    _running = chosen(PACKAGE, directory, os.environ.get(SWITCH, ""))
    if _running.kind == COMPILED:
        sys.meta_path.insert(0, CompiledModules(directory, read_manifest(directory)))


def chosen(package: str, directory: str, switch: str = "") -> Build:
    """The build that a process with this package and this directory of compiled modules runs.

    `switch`: the value of REWINDMQ_PURE; empty and "0" mean that it is not set."""
    if not os.path.exists(os.path.join(directory, MANIFEST)):
        return Build(PURE, _note_in(directory))
    if switch not in ("", "0"):
        return Build(PURE, f"{SWITCH} is set")
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError, KeyError) as error:
        return Build(PURE, unused=f"{directory}/{MANIFEST} cannot be read: {error}; {_remedy(package)}")
    wrong = why_unusable(package, directory, manifest)
    if wrong:
        return Build(PURE, unused=f"{wrong}; {_remedy(package)}")
    count = sum(not is_library(name) for name in manifest["modules"])
    return Build(COMPILED, f"{count} modules, mypy {manifest['mypy']}, {manifest['built']}")


def _note_in(directory: str) -> str:
    """Why the installation could not compile; empty if it did not try."""
    try:
        with open(os.path.join(directory, NOTE), encoding="utf-8") as file:
            return f"not compiled: {file.read().strip()}"
    except OSError:
        return ""


def why_unusable(package: str, directory: str, manifest: BuildManifest) -> str:
    """Why the compiled build must not run here; empty if it may."""
    if manifest["suffix"] != SUFFIX:
        return f"the compiled build is for {manifest['suffix']}, and this Python takes {SUFFIX}"
    for name, size in manifest["modules"].items():
        file = _file_of(directory, name)
        try:
            found = os.stat(file).st_size
        except OSError:
            return f"the compiled build is not whole: {file} is missing"
        if found != size:
            return f"the compiled build is not whole: {file} has {found} bytes instead of {size}"
    for path, digest in manifest["sources"].items():
        if digest_of(os.path.join(package, path)) != digest:
            return f"the compiled build is stale: {path} is not the source that it was made of"
    return ""


def read_manifest(directory: str) -> BuildManifest:
    """The manifest of a compiled build. Raises OSError; ValueError, KeyError if it is none of this format."""
    with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
        manifest = json.load(file)
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']}, and this RewindMQ knows {FORMAT}")
    missing = BuildManifest.__required_keys__ - manifest.keys()
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return cast(BuildManifest, manifest)


def digest_of(path: str) -> str:
    """The SHA-256 of a file; empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def is_library(name: str) -> bool:
    """Return True if a file of the manifest is the library. Modules of ours have a dot in their names."""
    return "." not in name


def _file_of(directory: str, name: str) -> str:
    return os.path.join(directory, name + SUFFIX)


def _stamp(directory: str) -> tuple[int, int]:
    """The identity of the manifest's file; zeros if it is gone."""
    try:
        found = os.stat(os.path.join(directory, MANIFEST))
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _remedy(package: str) -> str:
    if os.path.islink(os.path.join(package, "schemas")):  # a checkout
        return "`make compile` makes it anew"
    return "install RewindMQ again"
