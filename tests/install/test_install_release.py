"""`make release`: a version that is not ready is refused with one line, and one that is becomes a commit.

Each test has a repository of its own with the files of this checkout. `.ci/run` is there a script of a line."""

import datetime
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewindmq.projections.machine.rules.versions import SCHEMAS
from tests.install.installed import clean
from tests.support.needs import needed
from tests.tidy import references

pytestmark = pytest.mark.long

ROOT = references.ROOT
VERSION = "97.1.0"
NOTES = "# Changelog\n\n## Unreleased\n\nQueues can be rewound.\n\n## 0.0.1 - 2020-01-01\n\nNothing.\n"
CHANGED = ["CHANGELOG.md", "rewindmq/__init__.py", "tests/promises.json"]
CI = "#!/bin/sh\nexit 0\n"
TODAYS = SCHEMAS[max(SCHEMAS)]
SCHEMA = Path("schemas/released", f"{TODAYS}.avsc")
GOLDEN = next(ROOT.glob("tests/golden/*/events.json")).relative_to(ROOT)


class Repository:
    """A repository whose HEAD can be released."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in references.files():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path / name, follow_symlinks=False)
        for name in ("engine", "projections", "schemas", "spark_replay"):
            link = path / "rewindmq" / name
            if not link.is_symlink():
                link.symlink_to(f"../{name}")
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "A Maintainer")
        self.git("config", "user.email", "maintainer@example.org")
        self.commit({"CHANGELOG.md": NOTES, ".ci/run": CI})

    def git(self, *arguments: str) -> str:
        command = [needed("git"), *arguments]
        return subprocess.run(command, cwd=self.path, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def replace(self, name: str, before: str, after: str) -> None:
        text = (self.path / name).read_text()
        assert before in text
        self.commit({name: text.replace(before, after)})

    def release(self, version: str = VERSION, *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.support.release", version, *options]
        return subprocess.run(command, cwd=self.path, env=clean(), capture_output=True, text=True)

    def refuses(self, reason: str, version: str = VERSION, *options: str) -> None:
        head, status = self.git("rev-parse", "HEAD"), self.git("status", "--porcelain")
        done = self.release(version, *options)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith("no release: ")
        assert reason in done.stderr
        assert (self.git("rev-parse", "HEAD"), self.git("status", "--porcelain")) == (head, status)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("release") / "repository")


@pytest.fixture
def repository(made: Repository, tmp_path: Path) -> Repository:
    """A copy that the test may change."""
    copy = object.__new__(Repository)
    copy.path = tmp_path / "repository"
    shutil.copytree(made.path, copy.path, symlinks=True)
    return copy


def test_a_release_is_a_commit_and_no_tag(repository: Repository) -> None:
    head = repository.git("rev-parse", "HEAD")
    repository.commit({".ci/run": "#!/bin/sh\ntouch .git/ci-has-run\n"})
    done = repository.release()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (repository.path / ".git" / "ci-has-run").exists()
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    notes = NOTES.replace("## Unreleased\n", f"## Unreleased\n\n## {VERSION} - {today}\n")
    assert (repository.path / "CHANGELOG.md").read_text() == notes
    assert f'\n__version__ = "{VERSION}"\n' in (repository.path / "rewindmq" / "__init__.py").read_text()
    assert repository.git("log", "-1", "--format=%s") == f"Release {VERSION}"
    assert repository.git("show", "--name-only", "--format=").split() == CHANGED
    assert repository.git("rev-parse", "HEAD~2") == head
    assert (repository.git("status", "--porcelain"), repository.git("tag")) == ("", "")
    packages = {f"rewindmq-{VERSION}.tar.gz", f"rewindmq-{VERSION}-py3-none-any.whl"}
    assert {package.name for package in (repository.path / "dist").iterdir()} == packages
    assert f"    git tag --annotate v{VERSION} --message 'RewindMQ {VERSION}' COMMIT" in done.stdout
    repository.refuses(f"{VERSION} is not greater than {VERSION}")


@pytest.mark.rare
def test_the_result_of_ci_may_be_given_for_head_alone(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    repository.commit({".ci/run": "#!/bin/sh\nexit 1\n"})
    repository.refuses(".ci/run failed")
    repository.refuses(f"CI_PASSED is {before}, and HEAD is ", VERSION, "--ci-passed", before)
    done = repository.release(VERSION, "--ci-passed", repository.git("rev-parse", "--short=12", "HEAD"))
    assert done.returncode == 0, done.stderr
    assert repository.git("log", "-1", "--format=%s") == f"Release {VERSION}"


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3rc1"])
def test_a_version_has_three_numbers(made: Repository, version: str) -> None:
    made.refuses(f"{version!r} is not a version", version)


def test_a_version_is_greater_than_the_last_one(repository: Repository) -> None:
    repository.refuses("0.0.9 is not greater than ", "0.0.9")
    repository.git("tag", "v98.0.0")
    repository.git("tag", "v9.0.0")
    repository.git("tag", "v99-trial")
    repository.refuses(f"{VERSION} is not greater than 98.0.0")


@pytest.mark.parametrize("name", ["README.md", "left-over.txt"])
def test_the_tree_has_to_be_clean(repository: Repository, name: str) -> None:
    (repository.path / name).write_text("A change.\n")
    repository.refuses(f"the tree is not clean ({name})")


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        (NOTES.replace("Queues can be rewound.\n", ""), "CHANGELOG.md has no text under '## Unreleased'"),
        (NOTES.replace("## Unreleased\n", ""), "CHANGELOG.md has no text under '## Unreleased'"),
        (NOTES.replace("rewound.\n", "rewound.\n" * 61), "has 61 lines, and a page 60"),
    ],
)
def test_the_changelog_has_a_page(repository: Repository, notes: str, reason: str) -> None:
    repository.commit({"CHANGELOG.md": notes})
    repository.refuses(reason)


def test_a_released_schema_stays(repository: Repository) -> None:
    older = SCHEMA.with_name("0123456789abcdef.avsc")
    repository.commit({str(older): '{"type": "record", "name": "Older", "fields": []}'})
    repository.git("tag", "v0.0.1")
    repository.git("rm", "--quiet", str(older))
    repository.commit({})
    repository.refuses(f"{older} is gone, and v0.0.1 has it")


def test_a_golden_sample_stays(repository: Repository) -> None:
    repository.git("tag", "v0.0.1")
    repository.replace(str(GOLDEN), '"bytes": "', '"bytes": "00')
    repository.refuses("is not that of v0.0.1: golden bytes never change")


def test_the_schema_of_a_machine_version_stays(repository: Repository) -> None:
    repository.replace("projections/machine/rules/versions.py", "SCHEMAS = {1:", 'SCHEMAS = {7: "0123456789abcdef", 1:')
    repository.git("tag", "v0.0.1")
    repository.replace("projections/machine/rules/versions.py", '7: "0123456789abcdef", ', "")
    repository.refuses("has another schema for machine version 7 than v0.0.1")


def test_todays_schema_belongs_to_a_machine_version(repository: Repository) -> None:
    repository.replace("projections/machine/rules/versions.py", TODAYS, "0123456789abcdef")
    repository.refuses(f"ends with 0123456789abcdef, and today's schema is {TODAYS}")


@pytest.mark.rare
def test_generated_pages_are_up_to_date(repository: Repository) -> None:
    page = repository.path / "docs" / "spark" / "columns.md"
    repository.commit({"docs/spark/columns.md": page.read_text() + "\nOne more line.\n"})
    repository.refuses("FAILED tests/tidy/test_columns_page.py::")


@pytest.mark.rare
@pytest.mark.parametrize(
    ("name", "before", "after", "reason"),
    [
        ("setup.py", "import os\n", "import absent\n", "the packages cannot be built: "),
        (
            "rewindmq/__main__.py",
            "import click\n",
            "import absent\n",
            "--version` of the installed wheel does not print",
        ),
    ],
)
def test_the_wheel_works(repository: Repository, name: str, before: str, after: str, reason: str) -> None:
    repository.replace(name, before, after)
    repository.refuses(reason)
