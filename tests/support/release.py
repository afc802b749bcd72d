"""Check that a version can be released, write it, and commit it.

    make release VERSION=0.2.0                      runs .ci/run among the checks
    make release VERSION=0.2.0 CI_PASSED=COMMIT     trusts your word that .ci/run passed for COMMIT, which must be HEAD

A check that fails ends it with one line and exit status 1, and nothing is written. Otherwise the release is a commit on
the current branch: `__version__`, the changelog, and the names that it promises (tests/promises.json). Its packages are
in dist/. It makes no tag: maintainers tag the commit once it has landed. docs/development/release.md says what else a
release needs.
"""

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rewindmq
from rewindmq.projections.machine.rules import versions
from rewindmq.schemas.registry import envelope_fingerprint
from tests.install.installed import Environment, build, unpacked
from tests.support.needs import needed

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "CHANGELOG.md"
VERSION_FILE = "rewindmq/__init__.py"
VERSIONS_FILE = "projections/machine/rules/versions.py"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LINES_OF_A_PAGE = 60
# The tests of everything that a command generates, and of the schema that a release freezes.
GENERATED = (
    "tests/tidy/test_references.py",
    "tests/tidy/test_outputs_page.py",
    "tests/tidy/test_columns_page.py",
    "tests/tidy/test_stability.py",
    "tests/unit/cli/test_configuration.py",
    "tests/unit/schemas/test_schemas_registry.py",
    "tests/unit/schemas/test_schemas_golden.py",
)


class Refused(Exception):
    """The version cannot be released. The message says why, and what to do, in one line."""


def git(*arguments: str) -> str:
    command = [needed("git"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def require_clean_tree() -> None:
    changed = git("status", "--porcelain").splitlines()
    if changed:
        raise Refused(f"the tree is not clean ({changed[0].split()[-1]}): commit your changes, or remove them")


def numbers(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version. Raises Refused."""
    found = VERSION.fullmatch(version)
    if found is None:
        raise Refused(f"{version!r} is not a version: give three numbers, such as VERSION=0.2.0")
    return tuple(map(int, found.groups()))


def last_tag() -> str | None:
    """Return the tag of the newest release; None before the first one."""
    tags = [tag for tag in git("tag", "--list", "v*").splitlines() if VERSION.fullmatch(tag[1:])]
    return max(tags, key=lambda tag: numbers(tag[1:]), default=None)


def require_newer(version: str) -> None:
    tag = last_tag()
    last = max((rewindmq.__version__, *([tag[1:]] if tag else [])), key=numbers)
    if numbers(version) <= numbers(last):
        raise Refused(f"{version} is not greater than {last}, the last version: choose a greater one")


def require_changelog() -> None:
    found = UNRELEASED.search((ROOT / CHANGELOG).read_text())
    text = found[1].strip() if found else ""
    if not text:
        raise Refused(f"{CHANGELOG} has no text under '## Unreleased': say there what users get")
    lines = len(text.splitlines())
    if lines > LINES_OF_A_PAGE:
        raise Refused(f"'## Unreleased' in {CHANGELOG} has {lines} lines, and a page {LINES_OF_A_PAGE}: shorten it")


def require_frozen() -> None:
    """Refuse if records that the last release can have written would no longer be read as they were.

    A release freezes its schemas, their golden samples, and the schema of each machine version."""
    newest = versions.schema_of(versions.MACHINE_VERSION)
    if newest != envelope_fingerprint():
        raise Refused(f"SCHEMAS in {VERSIONS_FILE} ends with {newest}, and today's schema is {envelope_fingerprint()}")
    tag = last_tag()
    if tag is None:
        return
    for line in git("diff", "--name-only", "--diff-filter=D", tag, "HEAD", "--", "schemas/released").splitlines():
        raise Refused(f"{line} is gone, and {tag} has it: a released schema stays for ever")
    for name in git("ls-tree", "-r", "--name-only", tag, "--", "tests/golden").splitlines():
        today: dict[str, Any] = json.loads((ROOT / name).read_text()) if (ROOT / name).exists() else {}
        for sample, stored in json.loads(git("show", f"{tag}:{name}")).items():
            if today.get(sample, {}).get("bytes") != stored["bytes"]:
                raise Refused(f"the sample {sample} of {name} is not that of {tag}: golden bytes never change")
    before = dict(rows_of(git("show", f"{tag}:{VERSIONS_FILE}")))
    for number, schema in before.items():
        if versions.SCHEMAS.get(number) != schema:
            raise Refused(f"SCHEMAS in {VERSIONS_FILE} has another schema for machine version {number} than {tag}")


def rows_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the rows of SCHEMAS in the source of VERSIONS_FILE."""
    for number, schema in re.findall(r"(\d+): \"([0-9a-f]{16})\"", source):
        yield int(number), schema


def require_generated() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *GENERATED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        raise Refused(
            f"generated files or schemas are not up to date ({failed[0] if failed else done.stdout[-500:]}):"
            " run that test, which names the command"
        )


def write_release(tree: Path, version: str) -> None:
    """Write the version, and give the text under Unreleased its heading, into a tree."""
    changelog, module = tree / CHANGELOG, tree / VERSION_FILE
    heading = f"## {version} - {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", f"## Unreleased\n\n{heading}\n", 1))
    before = f'\n__version__ = "{rewindmq.__version__}"\n'
    text = module.read_text()
    if text.count(before) != 1:
        raise Refused(f"{VERSION_FILE} does not set __version__ once")
    module.write_text(text.replace(before, f'\n__version__ = "{version}"\n'))


def make_packages(version: str, work: Path) -> list[Path]:
    """Build the sdist and the wheel of HEAD as the release, and run the wheel in an empty environment."""
    tree = work / "tree"
    git("clone", "--quiet", str(ROOT), str(tree))
    write_release(tree, version)
    for each in ("sdist", "unpacked", "wheel"):
        (work / each).mkdir()
    try:
        sdist = build(tree, "sdist", work / "sdist")
        wheel = build(unpacked(sdist, work / "unpacked"), "wheel", work / "wheel")
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(f"the packages cannot be built: {said[-1] if said else error}") from error
    done = Environment(work / "empty", wheel).run("rewindmq", "version", cwd=work)
    if (done.returncode, done.stdout) != (0, f"{version}\n"):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Refused(f"`rewindmq version` of the installed wheel does not print {version}: {said[-1:]}")
    return [sdist, wheel]


def require_head(passed: str) -> None:
    head = git("rev-parse", "HEAD")
    if len(passed) < 7 or not head.startswith(passed):
        raise Refused(f"CI_PASSED is {passed}, and HEAD is {head}: check out the commit for which CI passed")


def run_ci() -> None:
    head = git("rev-parse", "HEAD")
    if subprocess.run([str(ROOT / ".ci" / "run")], cwd=ROOT).returncode:
        raise Refused(".ci/run failed: its output above says where")
    require_clean_tree()
    if git("rev-parse", "HEAD") != head:
        raise Refused("HEAD moved while .ci/run ran: start again")


def checked(what: str, check: Callable[[], Any]) -> Any:
    print(f"{what} ...", flush=True)
    return check()


def release(version: str, passed: str) -> None:
    checked("the tree is clean", require_clean_tree)
    if passed:
        checked("CI passed for HEAD", lambda: require_head(passed))
    checked("the version is new", lambda: require_newer(version))
    checked("the changelog has a page", require_changelog)
    checked("nothing that was released has changed", require_frozen)
    checked("generated files are up to date", require_generated)
    with tempfile.TemporaryDirectory(prefix="rewindmq-release-") as work:
        packages = checked("packages can be built and installed", lambda: make_packages(version, Path(work)))
        if not passed:
            checked(".ci/run passes", run_ci)
        (ROOT / "dist").mkdir(exist_ok=True)
        made = [Path(shutil.copy(package, ROOT / "dist")).relative_to(ROOT) for package in packages]
    head = git("rev-parse", "--short", "HEAD")
    from tests.support import promises  # here, as it imports Spark's side: a refusal comes at once

    write_release(ROOT, version)
    promises.FILE.write_text(promises.text_of(promises.promises()))
    git("add", str(promises.FILE))
    message = f"All that `make release` checks passed at {head}, {'as CI' if passed else '.ci/run'} included."
    git("commit", "--quiet", "--all", "--message", f"Release {version}", "--message", message)
    print(
        f"RewindMQ {version} is committed as {git('rev-parse', '--short', 'HEAD')}: {', '.join(map(str, made))}\n"
        "Once it has landed, tag the landed commit:\n"
        f"    git tag --annotate v{version} --message 'RewindMQ {version}' COMMIT && git push origin v{version}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("version")
    parser.add_argument("--ci-passed", metavar="COMMIT", default="", help="the commit for which .ci/run passed")
    arguments = parser.parse_args()
    try:
        release(arguments.version, arguments.ci_passed)
    except Refused as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
