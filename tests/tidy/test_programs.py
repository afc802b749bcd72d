"""Tests find other people's programs in one place, so that a missing one skips a test and says what to install."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ROOT / "tests" / "support" / "needs.py"
FILES = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path not in (NEEDS, Path(__file__))]
# Run by hand: they report a missing program in a table.
BY_HAND = (ROOT / "tests" / "acceptance", ROOT / "tests" / "bench")
# Debian's essential packages have them.
EVERYWHERE = {"apt-get", "bash", "chroot", "cp", "nsenter", "sh", "sha256sum", "tar"}
STARTS = re.compile(r"subprocess\.\w+|(?:\w+\.)?start_process")
NAMED = re.compile(rf"subprocess\.|start_process|\[\s*['\"](?:{'|'.join(needs.PROGRAMS)})['\"]")
LOOKS_UP = re.compile(r"\bwhich\(|import which\b|find_executable")


def offences(source: str, by_hand: bool = False) -> Iterator[str]:
    """Yield a line for each program that the source looks up, or starts without asking needs.py."""
    for number, line in enumerate(source.splitlines(), 1):
        if LOOKS_UP.search(line):
            yield f"{number}: found and needed of tests/support/needs.py look programs up"
    if by_hand or not NAMED.search(source):
        return
    started = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and STARTS.fullmatch(ast.unparse(node.func)):
            started.add(node.args[0])
        if isinstance(node, ast.List | ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
            program = node.elts[0].value
            known = isinstance(node, ast.List) and program in needs.PROGRAMS and len(node.elts) > 1
            if known or (node in started and program not in EVERYWHERE):
                yield f"{node.lineno}: write needed({program!r}) for {program!r}"


def test_a_missing_program_skips_a_test() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{offence}"
        for path in FILES
        for offence in offences(path.read_text(), by_hand=any(path.is_relative_to(each) for each in BY_HAND))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'HAPROXY = shutil.which("haproxy")',
        "from shutil import which",
        'subprocess.run(["openssl", "version"])',
        'subprocess.Popen(("strace", "-p", pid), stdin=None)',
        'command = ["java", "-version"]',
    ],
)
def test_a_planted_one_is_found(line: str) -> None:
    assert len(list(offences(line))) == 1


def test_a_program_that_is_not_installed_is_a_reason_and_in_ci_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.PROGRAMS, "no-such-program", "apt-get install no-such-package")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed: apt-get install no-such-pack"):
        needs.needed("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        needs.needed("no-such-program")
    assert needs.needed("git") == needs.found("git")


def test_the_page_names_every_program() -> None:
    page = (ROOT / "docs" / "development" / "testing.md").read_text()
    assert [program for program in needs.PROGRAMS if f"`{program}`" not in page] == []
