"""The functional and server tests of RabbitMQ's Java client, from its repository, with the client of Maven Central.

They know one address, localhost:5672, and set policies and users by rabbitmqctl: here that is `rewindmq`, which has the
same commands. The tests raise and clear alarms in Erlang: here a limit is set that does the same. Their own pom.xml
would make the client, too, and needs RabbitMQ's code generator for it; so one is made of it that compiles the tests
only. IO is by sockets: with Netty (5.29.0) an answer may come before the client is ready.
"""

import shutil
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

from tests.acceptance.brokers import MANAGEMENT_PORT, USUAL, Certificates
from tests.acceptance.fetching import CACHE, repository
from tests.acceptance.request import Outcome, Request, by_name

CLIENT = "5.29.0"
TEST = "org.apache.maven.plugins:maven-surefire-plugin:3.5.5:test"
MAVEN = "http://maven.apache.org/POM/4.0.0"
CONTROL = """#!/bin/sh
case "$*" in
*"rabbit_alarm:set_alarm({{resource_limit, memory"*) set -- set_vm_memory_high_watermark absolute 1 ;;
*"rabbit_alarm:clear_alarm({resource_limit, memory"*) set -- set_vm_memory_high_watermark 0.9 ;;
*"rabbit_alarm:set_alarm({{resource_limit, disk"*) set -- set_disk_free_limit 1000TB ;;
*"rabbit_alarm:clear_alarm({resource_limit, disk"*) set -- set_disk_free_limit 50MB ;;
esac
exec %s --http-port %d "$@"
"""


def run(suite: str, request: Request, certificates: Certificates) -> Outcome:
    """The outcome of each test of this class of their tests."""
    home = CACHE / "java" / CLIENT
    if not (home / "pom.xml").exists():
        theirs = repository("rabbitmq/rabbitmq-java-client", f"v{CLIENT}")
        shutil.copytree(theirs / "src" / "test", home / "src" / "test", dirs_exist_ok=True)
        (home / "pom.xml").write_bytes(tests_only(theirs / "pom.xml"))
    shutil.rmtree(home / "target" / "surefire-reports", ignore_errors=True)
    control = home / "rabbitmqctl"
    command = Path(sys.executable).with_name("rewindmq")
    control.write_text(CONTROL % (command, MANAGEMENT_PORT))
    control.chmod(0o755)
    with request.start(certificates, USUAL):
        request.printed(
            [
                "mvn",
                "--batch-mode",
                "test-compile",
                TEST,
                f"-Dtest={request.tests or suite}",
                "-Dio.layer=socket",
                f"-Drabbitmqctl.bin={control}",
                "-Dtest-broker.A.nodename=rewindmq@localhost",
            ],
            home,
        )
    reports = list((home / "target" / "surefire-reports").glob("TEST-*.xml"))
    if not reports:
        raise request.no_outcome()
    tests = by_name(
        (
            f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}",
            case.find("failure") is None and case.find("error") is None,
        )
        for report in reports
        for case in Xml.parse(report).iter("testcase")
        if case.find("skipped") is None
    )
    return Outcome(CLIENT, tests)


def tests_only(theirs: Path) -> bytes:
    """Their pom.xml without its build and profiles, and with the released client among its dependencies."""
    Xml.register_namespace("", MAVEN)
    known = Xml.parse(theirs).getroot()
    made = Xml.Element(name("project"))
    for tag, text in (("modelVersion", "4.0.0"), ("groupId", "tests"), ("artifactId", "tests"), ("version", "1")):
        Xml.SubElement(made, name(tag)).text = text
    for tag in ("properties", "dependencyManagement", "dependencies"):
        found = known.find(name(tag))
        assert found is not None, f"{theirs} has no {tag}"
        made.append(found)
    properties, dependencies = made.find(name("properties")), made.find(name("dependencies"))
    assert properties is not None
    assert dependencies is not None
    for tag in ("source", "target"):
        Xml.SubElement(properties, name(f"maven.compiler.{tag}")).text = "17"
    for known_one in dependencies:
        for optional in known_one.findall(name("optional")):
            known_one.remove(optional)
    for group, artifact, version in (
        ("com.rabbitmq", "amqp-client", CLIENT),
        ("io.netty", "netty-transport-classes-kqueue", "${netty.version}"),
    ):
        one = Xml.SubElement(dependencies, name("dependency"))
        for tag, text in (("groupId", group), ("artifactId", artifact), ("version", version)):
            Xml.SubElement(one, name(tag)).text = text
    return Xml.tostring(made)


def name(tag: str) -> str:
    return f"{{{MAVEN}}}{tag}"
