"""Compiles the hot modules with mypyc: `python -m rewindmq.compiler` in a checkout, which is `make compile`.

    compile_into(root, directory)       writes the directory that rewindmq/builds.py reads

It needs mypy, setuptools, a C compiler and Python's headers; it says in one line which of them is missing.

Rules of this file
- MODULES is the only list of what is compiled. This file is one of the sources in the manifest, so a changed list makes
  a build stale.
- A module that is compiled is a plain module, does not ask for `__file__`, and is not run as a program: an extension
  module has no code that `python -m` could run, and lies in another folder.
- mypy sees the standard library and RewindMQ, and no other package. So the same source gives the same code wherever
  it is compiled. `make lint` checks the types with all packages.
- The directory is replaced as a whole when all is compiled: no process finds a half of it.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from importlib import metadata
from itertools import chain
from pathlib import Path

from rewindmq import builds

# Those that are measured to matter (decision 0103), in the order of the alphabet. docs/development/builds.md says what
# a module has to be like.
MODULES = (
    "rewindmq.engine.amqp.channel",
    "rewindmq.engine.amqp.confirms",
    "rewindmq.engine.amqp.connection",
    "rewindmq.engine.amqp.consumer",
    "rewindmq.engine.amqp.frames",
    "rewindmq.engine.amqp.lookahead",
    "rewindmq.engine.amqp.output",
    "rewindmq.engine.amqp.publish_path",
    "rewindmq.engine.amqp.settlement",
    "rewindmq.engine.broker.turns",
    "rewindmq.engine.cluster.partition",
    "rewindmq.engine.embedded.partition",
    "rewindmq.engine.log.embedded.blocks",
    "rewindmq.engine.log.embedded.log",
    "rewindmq.engine.log.embedded.segments",
    "rewindmq.engine.log.embedded.writer",
    "rewindmq.engine.partition.partition",
    "rewindmq.engine.partition.reading",
    "rewindmq.projections.machine.data.delayed_order",
    "rewindmq.projections.machine.data.effects",
    "rewindmq.projections.machine.data.message_order",
    "rewindmq.projections.machine.data.priority_order",
    "rewindmq.projections.machine.data.queue",
    "rewindmq.projections.machine.events.delivery",
    "rewindmq.projections.machine.events.publish",
    "rewindmq.projections.machine.events.settlement",
    "rewindmq.projections.machine.machine",
    "rewindmq.projections.machine.state",
    "rewindmq.projections.publish_runs",
    "rewindmq.projections.replay",
    "rewindmq.projections.store.projector",
    "rewindmq.schemas.codec",
    "rewindmq.schemas.events",
    "rewindmq.schemas.older_schemas",
    "rewindmq.schemas.service_records",
    "rewindmq.schemas.shapes",
)
CORES = os.cpu_count() or 1
OPTIMIZATION, DEBUG = "2", "0"  # of gcc; -O3 is not faster here, and debug symbols double the size
# What mypy is told: never the project's own settings, which ask for more than compiling needs.
MYPY_OPTIONS = ("--config-file=", "--no-site-packages", "--ignore-missing-imports", "--no-error-summary")
_MAIN = re.compile(r"^if __name__ ==", re.MULTILINE)


class NotCompiled(Exception):
    """The modules cannot be compiled here. The text is one line: what is missing, and what to do."""


def compile_into(root: Path, directory: Path, modules: Sequence[str] = MODULES) -> builds.BuildManifest:
    """Compile `modules` of the package `root`/rewindmq, and put the result into `directory`. Raises NotCompiled."""
    paths = [source_of(root, name) for name in modules]
    for path in paths:
        require_plain(root / path)
    sources = {str(path.relative_to("rewindmq")): _digest(root / path) for path in sources_of(root, paths)}
    require_tools()
    # The library's name has the digest of all that it was made of: shims of one build do not find another library.
    stamp = json.dumps([sources, metadata.version("mypy"), builds.SUFFIX, MYPY_OPTIONS], allow_nan=False)
    library = f"rewindmq_{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".compiled-") as scratch:
        made = _extensions(root, paths, library, Path(scratch))
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        for name, file in made.items():
            file.rename(fresh / f"{name}{builds.SUFFIX}")
        manifest = builds.BuildManifest(
            format=builds.FORMAT,
            suffix=builds.SUFFIX,
            python=sys.version.split()[0],
            mypy=metadata.version("mypy"),
            built=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            modules={name: (fresh / f"{name}{builds.SUFFIX}").stat().st_size for name in sorted(made)},
            sources=dict(sorted(sources.items())),
        )
        (fresh / builds.MANIFEST).write_text(json.dumps(manifest, indent=2, allow_nan=False) + "\n")
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        fresh.rename(directory)
    return manifest


def provide(root: Path, directory: Path) -> None:
    """Put a compiled build of `root` into `directory`: the one that the checkout has, or a new one.

    Raises NotCompiled."""
    here = root / "rewindmq" / builds.DIRECTORY
    if is_fresh(root, here):
        shutil.copytree(here, directory, dirs_exist_ok=True)
    else:
        compile_into(root, directory)


def is_fresh(root: Path, directory: Path) -> bool:
    """Return True if `directory` has a compiled build of the sources in `root`, for this Python."""
    return builds.chosen(str(root / "rewindmq"), str(directory)).kind == builds.COMPILED


def size_of(manifest: builds.BuildManifest) -> str:
    """The size of all files of a compiled build, in words."""
    return f"{sum(manifest['modules'].values()) / 1e6:.1f} MB"


# -- what is compiled --------------------------------------------------------------------------------------------------


def source_of(root: Path, module: str) -> Path:
    """The source of a module, from `root` on; a package's is its __init__.py."""
    path = Path(*module.split("."))
    return path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py")


def require_plain(source: Path) -> None:
    """Raise NotCompiled for a module that cannot run from an extension module."""
    if source.name == "__init__.py" or not source.exists():
        raise NotCompiled(f"{source}: MODULES of rewindmq/compiler.py names plain modules that are there")
    text = source.read_text("utf-8")
    if _MAIN.search(text) or "__file__" in text:
        raise NotCompiled(f"{source}: a module that is run as a program, or asks for __file__, cannot be compiled")


def sources_of(root: Path, paths: Iterable[Path]) -> list[Path]:
    """The sources on which the compiled code depends.

    These are the modules, their packages, all that they import of ours, for types too, and so on, and this file."""
    waiting = [*paths, Path("rewindmq", "compiler.py")]
    found: dict[Path, None] = {}
    while waiting:
        path = waiting.pop()
        if path not in found and (root / path).exists():
            found[path] = None
            waiting += (parent / "__init__.py" for parent in path.parents if parent.name)
            waiting += (source_of(root, name) for name in imports_of((root / path).read_text("utf-8")))
    return sorted(found)


def imports_of(text: str) -> Iterator[str]:
    """Yields the modules of ours that a source may import. A name from a package may be a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "rewindmq")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rewindmq":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _digest(path: Path) -> str:
    return builds.digest_of(str(path))


# -- compiling ---------------------------------------------------------------------------------------------------------


def require_c() -> None:
    """Raise NotCompiled if there is no C compiler, or no header of Python."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise NotCompiled(
            f"compiling needs a C compiler, and there is no {compiler}: install gcc (Debian: gcc libc6-dev)"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise NotCompiled(f"compiling needs Python's headers, and there is no {header} (Debian: python3-dev)")


def require_tools() -> None:
    """Raise NotCompiled if a tool is missing."""
    require_c()
    for package in ("mypy", "setuptools"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            raise NotCompiled(f"compiling needs {package}: pip install 'rewindmq[build]'") from None


def _extensions(root: Path, paths: Sequence[Path], library: str, scratch: Path) -> dict[str, Path]:
    """Compile; returns the file of each extension module by its name."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    class InParallel(build_ext):  # type: ignore[misc]  # setuptools tells no types
        """Compiles the library's many sources side by side, and the shims as well."""

        def build_extension(self, ext: Extension) -> None:
            def compiled(source: str) -> list[str]:
                made: list[str] = self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=ext.include_dirs,
                    extra_postargs=ext.extra_compile_args,
                )
                return made

            with ThreadPoolExecutor(CORES) as pool:
                ext.extra_objects = [*ext.extra_objects, *chain.from_iterable(pool.map(compiled, ext.sources))]
            ext.sources = []
            super().build_extension(ext)

    with chdir(root), redirect_stdout(sys.stderr):  # tracebacks show the path that mypyc is given
        extensions = mypycify(
            [*MYPY_OPTIONS, *map(str, paths)],
            only_compile_paths=list(map(str, paths)),
            opt_level=OPTIMIZATION,
            debug_level=DEBUG,
            group_name=library,
            multi_file=True,  # one file of all modules takes gcc more than twice as long, and is no faster
            target_dir=str(scratch / "c"),
        )
        command = InParallel(Distribution({"name": "rewindmq", "ext_modules": extensions}))
        command.parallel = CORES
        command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "objects")
        command.ensure_finalized()
        command.run()
        return {each.name: scratch / "lib" / command.get_ext_filename(each.name) for each in extensions}


def main() -> int:
    """Compile in this checkout, unless it is done. Returns the exit status."""
    directory = Path(builds.PACKAGE, builds.DIRECTORY)
    root = directory.parent.parent
    if is_fresh(root, directory):
        manifest = builds.read_manifest(str(directory))
        print(f"{directory} is up to date: {len(manifest['modules']) - 1} modules, {size_of(manifest)}")
        return 0
    began, used = time.monotonic(), sum(os.times()[:4])
    try:
        manifest = compile_into(root, directory)
    except NotCompiled as error:
        print(f"not compiled: {error}", file=sys.stderr)
        return 1
    took, cpu = time.monotonic() - began, sum(os.times()[:4]) - used
    count = len(manifest["modules"]) - 1
    print(f"{directory}: {count} modules in {took:.0f} s ({cpu:.0f} s of CPU), {size_of(manifest)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
