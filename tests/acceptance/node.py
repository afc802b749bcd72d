"""Suites of Node's clients: rabbitmq-client and rascal (which is built on amqplib), from their repositories.

Their packages on npm have no tests. Of what they need for development only what the tests need is installed.
"""

import json
import re
import subprocess
from pathlib import Path

from tests.acceptance.fetching import repository
from tests.acceptance.request import Outcome, Request, by_name

NEEDED = {"@types/node", "typescript", "ts-node", "amqplib", "chalk", "chance", "zunit"}
# Debian's and others' mirrors of npm lack random-readable. rascal's tests use this one function of it.
RANDOM_READABLE = """
const { Readable } = require('stream');
const { randomBytes } = require('crypto');
exports.createRandomStream = () => new Readable({ read(size) { this.push(randomBytes(Math.min(size, 16384))); } });
"""
# rascal's test runner, as its command runs it, but with TAP for people's words.
ZUNIT_TAP = """
const { Harness, Suite, TapReporter, syntax } = require('zunit');
Object.assign(global, syntax);
const suite = new Suite('rascal').discover({ pattern: new RegExp(process.env.FILES) });
suite.then((found) => new Harness(found).run(new TapReporter({}))).then(() => process.exit());
"""
TAP = re.compile(r"^\s*(ok|not ok) \d+ (?:- )?(.*?)(?: # (?:time|duration).*)?$", re.MULTILINE)


def run(name: str, tag: str, request: Request, command: list[str], environment: dict[str, str]) -> Outcome:
    """The outcome of each test that TAP names; `command` prints TAP."""
    found = TAP.findall(request.printed(command, installed(name, tag), environment))
    if not found:
        raise request.no_outcome()
    tests = by_name((test, word == "ok") for word, test in found if "# SKIP" not in test)
    return Outcome(tag.removeprefix("v"), tests)


def installed(name: str, tag: str) -> Path:
    home = repository(name, tag)
    if not (home / "node_modules").exists():
        package = json.loads((home / "package.json").read_text())
        package["devDependencies"] = {
            name: version for name, version in package["devDependencies"].items() if name in NEEDED
        }
        package["scripts"] = {}
        (home / "package.json").write_text(json.dumps(package))
        (home / "package-lock.json").unlink(missing_ok=True)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
        subprocess.run(["npm", "install", *options], cwd=home, check=True)
        theirs = home / "node_modules" / "random-readable"
        theirs.mkdir()
        (theirs / "index.js").write_text(RANDOM_READABLE)
    return home
