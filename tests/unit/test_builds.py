"""Which build runs: pure or compiled (rewindmq/builds.py), and what may be compiled (rewindmq/compiler.py)."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq import builds, compiler
from rewindmq.builds import MANIFEST, SUFFIX, Build, CompiledModules, chosen, digest_of, read_manifest
from tests.support.running import ROOT

MODULE = "rewindmq.schemas.codec"
LIBRARY = "rewindmq_0123__mypyc"


class Tree:
    """A package with one source, and a compiled build of it. Its extension modules are never loaded."""

    def __init__(self, root: Path) -> None:
        self.package = root / "rewindmq"
        self.directory = self.package / "compiled"
        (self.package / "schemas").mkdir(parents=True)
        self.directory.mkdir()
        self.source = self.package / "schemas" / "codec.py"
        self.source.write_text("ONE = 1\n")
        for name in (MODULE, LIBRARY):
            self.file(name).write_bytes(b"machine code")
        self.write()

    def file(self, name: str) -> Path:
        return self.directory / f"{name}{SUFFIX}"

    def write(self, **other: Any) -> None:
        manifest = {
            "format": builds.FORMAT,
            "suffix": SUFFIX,
            "python": "3.11.7",
            "mypy": "2.4.1",
            "built": "2026-11-23T08:00:00Z",
            "modules": {name: len(b"machine code") for name in (MODULE, LIBRARY)},
            "sources": {"schemas/codec.py": digest_of(str(self.source))},
        }
        (self.directory / MANIFEST).write_text(json.dumps(manifest | other))

    def chosen(self, switch: str = "") -> Build:
        return chosen(str(self.package), str(self.directory), switch)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_compiled_build_of_the_sources_that_are_here_runs(tree: Tree) -> None:
    assert str(tree.chosen()) == "compiled (1 modules, mypy 2.4.1, 2026-11-23T08:00:00Z)"


def test_without_a_compiled_build_the_pure_one_runs_silently(tree: Tree, tmp_path: Path) -> None:
    assert chosen(str(tree.package), str(tmp_path / "nothing")) == Build("pure")
    (tree.directory / MANIFEST).unlink()  # a build that was not finished
    assert tree.chosen() == Build("pure")
    assert str(Build("pure")) == "pure"


@pytest.mark.parametrize(("switch", "kind"), [("1", "pure"), ("yes", "pure"), ("0", "compiled"), ("", "compiled")])
def test_rewindmq_pure_switches_the_compiled_build_off(tree: Tree, switch: str, kind: str) -> None:
    build = tree.chosen(switch)
    assert (build.kind, build.unused) == (kind, "")
    assert (str(build) == "pure (REWINDMQ_PURE is set)") == (kind == "pure")


def other_source(tree: Tree) -> str:
    tree.source.write_text("ONE = 2\n")
    return "the compiled build is stale: schemas/codec.py is not the source that it was made of"


def no_source(tree: Tree) -> str:
    tree.source.unlink()
    return "the compiled build is stale: schemas/codec.py is not the source that it was made of"


def other_python(tree: Tree) -> str:
    tree.write(suffix=".cpython-399-x86_64-linux-gnu.so")
    return f"the compiled build is for .cpython-399-x86_64-linux-gnu.so, and this Python takes {SUFFIX}"


def no_library(tree: Tree) -> str:
    tree.file(LIBRARY).unlink()
    return f"the compiled build is not whole: {tree.file(LIBRARY)} is missing"


def no_module(tree: Tree) -> str:
    tree.file(MODULE).unlink()
    return f"the compiled build is not whole: {tree.file(MODULE)} is missing"


def half_a_module(tree: Tree) -> str:
    tree.file(MODULE).write_bytes(b"machine")
    return f"the compiled build is not whole: {tree.file(MODULE)} has 7 bytes instead of 12"


def torn_manifest(tree: Tree) -> str:
    (tree.directory / MANIFEST).write_text('{"format": 1, "suf')
    return f"{tree.directory}/{MANIFEST} cannot be read: Unterminated string"


def manifest_of_another_version(tree: Tree) -> str:
    tree.write(format=99)
    return f"{tree.directory}/{MANIFEST} cannot be read: format 99, and this RewindMQ knows {builds.FORMAT}"


@pytest.mark.parametrize(
    "damage",
    [
        other_source,
        no_source,
        other_python,
        no_library,
        no_module,
        half_a_module,
        torn_manifest,
        manifest_of_another_version,
    ],
)
def test_a_build_that_does_not_fit_never_runs_and_says_why(tree: Tree, damage: Callable[[Tree], str]) -> None:
    why = damage(tree)
    build = tree.chosen()
    assert build.kind == "pure"
    assert build.unused.startswith(why)
    assert build.unused.endswith("; install RewindMQ again")
    assert str(build) == f"pure ({build.unused})"


def test_a_checkout_is_told_to_compile_again(tree: Tree, tmp_path: Path) -> None:
    (tree.package / "schemas").rename(tmp_path / "schemas")
    (tree.package / "schemas").symlink_to("../schemas")
    other_source(tree)
    assert tree.chosen().unused.endswith("; `make compile` makes it anew")


def test_modules_of_the_manifest_are_found_and_no_other(tree: Tree) -> None:
    finder = CompiledModules(str(tree.directory), read_manifest(str(tree.directory)))
    for name in (MODULE, LIBRARY):
        spec = finder.find_spec(name, None)
        assert spec is not None
        assert spec.origin == str(tree.file(name))
    assert finder.find_spec("rewindmq.schemas.events", None) is None
    assert finder.find_spec("schemas.codec", None) is None  # another version's, before the package rewindmq


@pytest.mark.parametrize("gone", [True, False])
def test_a_process_does_not_mix_two_builds(tree: Tree, gone: bool) -> None:
    """A build that is made anew while a process runs: what that process imports later would be of the new one."""
    finder = CompiledModules(str(tree.directory), read_manifest(str(tree.directory)))
    if gone:
        (tree.directory / MANIFEST).unlink()
    else:
        fresh = tree.directory / "fresh"
        fresh.write_bytes((tree.directory / MANIFEST).read_bytes())
        os.utime(fresh, ns=(1, 1))
        fresh.rename(tree.directory / MANIFEST)
    with pytest.raises(ImportError, match="changed while this process ran: a process does not mix two builds"):
        finder.find_spec(MODULE, None)
    assert finder.find_spec("json", None) is None


# -- what is compiled --------------------------------------------------------------------------------------------------


def test_the_list_of_compiled_modules_names_plain_modules_in_order() -> None:
    assert list(compiler.MODULES) == sorted(set(compiler.MODULES))
    for name in compiler.MODULES:
        compiler.require_plain(ROOT / compiler.source_of(ROOT, name))


@pytest.mark.parametrize(
    "text", ["HERE = __file__\n", 'def main() -> None: ...\n\n\nif __name__ == "__main__":\n    main()\n']
)
def test_a_module_that_needs_its_file_is_not_compiled(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    with pytest.raises(compiler.NotCompiled, match="run as a program, or asks for __file__"):
        compiler.require_plain(tmp_path / "module.py")
    with pytest.raises(compiler.NotCompiled, match="names plain modules that are there"):
        compiler.require_plain(tmp_path / "other.py")


def test_all_that_compiled_code_depends_on_is_in_the_manifest() -> None:
    """mypyc writes constants of modules that are not compiled into the code, too."""
    found = {str(path) for path in compiler.sources_of(ROOT, [Path("rewindmq/schemas/codec.py")])}
    assert {"rewindmq/schemas/codec.py", "rewindmq/schemas/events.py", "rewindmq/schemas/values.py"} <= found
    assert {"rewindmq/__init__.py", "rewindmq/schemas/__init__.py", "rewindmq/compiler.py"} <= found
    assert not [path for path in found if path.startswith(("rewindmq/engine", "rewindmq/projections"))]


def test_an_import_for_types_alone_counts(tmp_path: Path) -> None:
    package = tmp_path / "rewindmq"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rewindmq import two\n"
    )
    (package / "two.py").write_text("import rewindmq.three\n")
    (package / "three.py").write_text("import json\n")
    found = [path.stem for path in compiler.sources_of(tmp_path, [Path("rewindmq/one.py")])]
    assert found == ["__init__", "one", "three", "two"]


def test_a_machine_without_a_c_compiler_is_told_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "gcc-that-is-not-here")
    with pytest.raises(compiler.NotCompiled, match="needs a C compiler, and there is no gcc-that-is-not-here"):
        compiler.compile_into(ROOT, tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()
    monkeypatch.setattr(compiler, "is_fresh", lambda *_: False)
    assert compiler.main() == 1
    assert capsys.readouterr().err.count("\n") == 1
