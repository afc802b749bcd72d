"""Bunny's specs for a broker, from its repository, with RSpec and the other gems of Debian.

RubyGems and Bundler are not needed: two gems come from their repositories, because Debian's are too old (amq-protocol)
or missing (a client of the management API), and a file of ours takes Bundler's place.
"""

import json
import tempfile
from pathlib import Path

from tests.acceptance.brokers import SECURE, Address, Certificates
from tests.acceptance.fetching import repository
from tests.acceptance.request import Outcome, Request, by_name
from tests.support.certificates import Authority

VERSION = "3.2.0"
# The gem of Toxiproxy is not fetched. The specs that need it leave themselves out without a proxy.
BUNDLER = """
require 'json'
require 'sorted_set'
module Bundler
  def self.require(*groups) = nil
end
module Toxiproxy
  def self.running? = false
end
"""
PARTS = ("higher_level_api", "lower_level_api", "issues")
VHOSTS = {
    "bunny_testbed": None,
    "bunny_dqt_classic": "classic",
    "bunny_dqt_quorum": "quorum",
    "bunny_dqt_stream": "stream",
}
USERS = {"bunny_gem": "bunny_password", "bunny_reader": "reader_password"}


def run(request: Request) -> Outcome:
    """Return the outcome of each example that is not pending."""
    home, *_ = paths = gems(VERSION)
    paths += [repository("ruby-amqp/rabbitmq_http_api_client", "v1.14.0")]  # the newest for Debian's faraday
    with tempfile.TemporaryDirectory() as making, request.start(certificates(Path(making)), SECURE) as broker:
        prepare(broker)
        (Path(making) / "bundler.rb").write_text(BUNDLER)
        environment = {"RUN_TLS_TESTS": "true", "BUNNY_CERTIFICATE_DIR": making}
        report = Path(making) / "report.json"
        command = ["rspec", "-I", making, *(option for gem in paths for option in ("-I", str(gem / "lib")))]
        command += ["--format", "json", "--out", str(report), "--format", "documentation"]
        command += ["--example", request.tests] if request.tests else []
        request.printed([*command, *(f"spec/{part}" for part in PARTS)], home, environment)
        if not report.exists():
            raise request.no_outcome()
        examples = json.loads(report.read_text())["examples"]
    tests = by_name(
        (example["full_description"], example["status"] == "passed")
        for example in examples
        if example["status"] != "pending"
    )
    return Outcome(VERSION, tests)


def certificates(home: Path) -> Certificates:
    """Make certificates under the names that the specs use. Theirs do not fit together."""
    authority = Authority(home, "ca_certificate")
    server = authority.issue("server_certificate", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")
    client = authority.issue("client_certificate", "/CN=client")
    client.key.rename(home / "client_key.pem")
    return Certificates(authority.certificate, server.certificate, server.key)


def gems(version: str) -> list[Path]:
    """Return Bunny and the one gem that it needs newer than Debian's."""
    return [repository("ruby-amqp/bunny", version), repository("ruby-amqp/amq-protocol", "v2.8.0")]


def prepare(broker: Address) -> None:
    """Create the virtual hosts and users of their bin/ci/before_build.sh."""
    for user, password in USERS.items():
        broker.manage(f"users/{user}", {"password": password, "tags": ""})
    for vhost, queue_type in VHOSTS.items():
        broker.manage(f"vhosts/{vhost}", {"default_queue_type": queue_type} if queue_type else {})
        for user in ("guest", "bunny_gem"):
            broker.manage(f"permissions/{vhost}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
    broker.manage("permissions/bunny_testbed/bunny_reader", {"configure": "^---$", "write": "^---$", "read": ".*"})
