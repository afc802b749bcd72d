"""Suites of Node's clients: rabbitmq-client and rascal (which is built on amqplib), from their repositories.

Their packages on npm have no tests. Of what they need for development only what the tests need is installed.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from tests.acceptance.fetching import repository

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
const suite = new Suite('rascal').discover({ pattern: /^[\\w-]+.tests.js$/ });
suite.then((found) => new Harness(found).run(new TapReporter({}))).then(() => process.exit());
"""
TAP = re.compile(r"^\s*(ok|not ok) \d+ (?:- )?(.*?)(?: # (?:time|duration).*)?$", re.MULTILINE)


def run(name: str, tag: str, command: list[str], environment: dict[str, str]) -> dict[str, bool]:
    """The outcome of each test that TAP names; `command` prints TAP."""
    home = installed(name, tag)
    ran = subprocess.run(
        command, cwd=home, env={**os.environ, **environment}, capture_output=True, text=True, timeout=1800
    )
    (home.parent / "output").write_text(ran.stdout + ran.stderr)
    found = TAP.findall(ran.stdout)
    assert found, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {test: word == "ok" for word, test in found if "# SKIP" not in test}


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
