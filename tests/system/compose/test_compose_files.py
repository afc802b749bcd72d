"""The container stack, as far as it can be checked without a container engine: every file, version, variable, option
and service that it names is there, and what is said twice is said alike."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
import yaml

from rewindmq.engine.cli.configuration.assembly import config_of
from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.configuration.sources import DEFAULT_FILE, Sources
from rewindmq.engine.cli.main import rewindmq
from rewindmq.spark_replay.__main__ import main as spark_replay
from tests.support.locks import pins
from tests.support.running import ROOT

COMPOSE = ROOT / "compose"
DOCKERFILE = (COMPOSE / "Dockerfile").read_text()
ENVIRONMENT = dict(
    line.split("=", 1) for line in (COMPOSE / ".env").read_text().splitlines() if line and not line.startswith("#")
)
TEXT = (COMPOSE / "compose.yaml").read_text()
STACK: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+)\}", lambda found: ENVIRONMENT[found[1]], TEXT))
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
KAFKA = {name: service for name, service in SERVICES.items() if name.startswith("kafka-")}
NODES = {name: service for name, service in SERVICES.items() if name.startswith("rewindmq-")}
OF_THE_BUILD = {"VERSION": "${VERSION:-}", "REVISION": "${REVISION:-}"}  # empty where nobody names them
ADDRESSES = {f"{name}:9092" for name in KAFKA}


def parsed(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """The options, as the program takes them; a click error when it does not."""
    return command.make_context(command.name, list(arguments)).params


def test_every_variable_has_a_value_and_every_value_a_use() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", TEXT)) == set(ENVIRONMENT)
    arguments = set(re.findall(r"^ARG (\w+)$", DOCKERFILE, re.M))
    assert set(re.findall(r"\$\{(\w+)\}", DOCKERFILE)) == arguments <= ENVIRONMENT.keys() | OF_THE_BUILD.keys()
    for service in SERVICES.values():
        if "build" in service:
            assert service["build"]["args"] == {name: (ENVIRONMENT | OF_THE_BUILD)[name] for name in arguments}


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":(local|\d+\.\d+\.\d+)$", service["image"]), f"{name}: {service['image']}"
    stages = set(re.findall(r" AS (\w+)$", DOCKERFILE, re.M))
    for image in re.findall(r"^FROM (\S+)", DOCKERFILE, re.M):
        assert image in stages or re.search(r":\$\{(PYTHON|MAVEN)_VERSION\}-", image), image
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    assert {service["image"] for service in SERVICES.values() if service["image"].endswith(":local")} == built
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", ENVIRONMENT[name]) for name in ENVIRONMENT if name.endswith("_VERSION"))


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements-build.lock", ("build",)),
        ("requirements.lock", ("archive", "kafka")),
        ("requirements-spark.lock", ("archive", "kafka", "spark")),
    ],
)
def test_the_packages_are_those_that_are_tested_with(lock: str, extras: tuple[str, ...]) -> None:
    """And no more than it takes to run. The images have nothing of what made the wheel."""
    tested, taken = pins(ROOT / "requirements.lock"), pins(COMPOSE / lock)
    assert {name: tested.get(name) for name in taken} == taken
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    needed = sum((optional[extra] for extra in extras), project["dependencies"])
    assert {re.split(r"[\[<>=]", each)[0].lower() for each in needed} <= taken.keys()
    unused = {"pytest", "nbconvert", "matplotlib", "hypothesis"}
    unused |= set() if "spark" in extras else {"pyspark", "pyarrow", "pandas", "numpy", "protobuf"}
    unused |= {"confluent-kafka"} if "build" in extras else {"mypy", "setuptools", "wheel"}
    assert not unused & taken.keys()
    assert re.search(rf"^RUN pip (--python venv )?install --no-cache-dir --require-hashes -r {lock}$", DOCKERFILE, re.M)


def test_the_versions_are_those_that_are_tested_with() -> None:
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    dependency = ElementTree.parse(ROOT / "tests/support/kafka/pom.xml").find(".//dependency/version", space)
    assert dependency is not None
    assert dependency.text == ENVIRONMENT["KAFKA_VERSION"]
    python = ENVIRONMENT["PYTHON_VERSION"].rpartition(".")[0]
    assert f'requires-python = ">={python},' in (ROOT / "pyproject.toml").read_text()


def test_what_is_built_from_is_there() -> None:
    allowed = {line[1:] for line in (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M):
        copied |= set(line.split()[:-1])
    assert copied == allowed
    assert [path for path in copied if not (ROOT / path).exists()] == []
    stages = set(re.findall(r" AS (\w+)$", DOCKERFILE, re.M))
    assert set(re.findall(r"--from=(\w+)", DOCKERFILE)) <= stages
    for service in SERVICES.values():
        if "build" in service:
            build = service["build"]
            assert (COMPOSE / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).resolve() == COMPOSE / "Dockerfile"
            assert build["target"] in stages


def test_the_nodes_start_with_the_settings_of_the_file(tmp_path: Path) -> None:
    [settings] = [COMPOSE / each["file"] for each in STACK["configs"].values()]
    password = tmp_path / "password"
    password.write_text((COMPOSE / STACK["secrets"]["first_user"]["file"]).read_text())
    file = tmp_path / "rewindmq.toml"
    file.write_text(settings.read_text().replace("/run/secrets/first_user", str(password)))
    for name, service in NODES.items():
        assert service["configs"] == [{"source": "rewindmq", "target": str(DEFAULT_FILE)}]
        assert service["secrets"] == list(STACK["secrets"])
        program, *options = service["command"]
        flags = {key: value for key, value in parsed(commands_of(rewindmq)[program], options).items() if key == "node"}
        config = config_of(Sources(flags, service["environment"], file).values())
        assert (config.node, config.host) == (name, "0.0.0.0")
        [volume] = service["volumes"]
        assert volume == f"{name}:{config.data}"
        listening = {str(config.amqp_port), str(config.http_port)}
        assert {port.split(":")[-1] for port in service["ports"]} == listening
        assert config.kafka is not None
        assert set(config.kafka.split(",")) == ADDRESSES
        assert service["environment"] == {
            "REWINDMQ_USER": config.default_user,
            "REWINDMQ_PASSWORD_FILE": "/run/secrets/first_user",
        }
        assert config.default_user not in config.loopback_users
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_images_have_the_labels_of_oci() -> None:
    """Both images have the same ones, and each has its own. Builds name the version and the revision."""
    named = {
        stage: labels_in(text)
        for stage, text in re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.M | re.S)
    }
    assert named["rewindmq"] == {"licenses": "Apache-2.0", "version": "${VERSION}", "revision": "${REVISION}"}
    for image in ("broker", "spark"):
        assert named[image].keys() == {"title", "description"}


def labels_in(text: str) -> dict[str, str]:
    return dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text))


def test_nothing_in_the_images_installs_or_compiles() -> None:
    """The environment is made in a stage of its own, without pip. The last stages copy it."""
    last = dict(re.findall(r"^FROM rewindmq AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.M | re.S))
    assert last.keys() == {"broker", "spark"}
    assert all("pip" not in text and "gcc" not in text for text in last.values())
    [base] = re.findall(r" AS rewindmq\n(.*?)(?=^FROM)", DOCKERFILE, re.M | re.S)
    assert "pip uninstall --yes --root-user-action ignore setuptools wheel pip" in base
    assert "python -m venv --without-pip venv" in DOCKERFILE


def test_spark_watches_with_options_that_there_are() -> None:
    service = SERVICES["spark"]
    options = parsed(spark_replay.commands[service["command"][0]], service["command"][1:])
    assert set(options["kafka"].split(",")) == ADDRESSES
    [volume] = service["volumes"]
    assert os.fspath(options["checkpoint"]).startswith(volume.split(":")[1] + "/")


def test_commands_in_the_images_are_ours() -> None:
    [check] = re.findall(r"^HEALTHCHECK .* CMD \[(.*)\]$", DOCKERFILE, re.M)
    program, *words = (word.strip(' "') for word in check.split(","))
    assert program == "rewindmq"
    parsed(commands_of(rewindmq)[words[0]], words[1:])


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_for_what_can_be_healthy(name: str) -> None:
    service = SERVICES[name]
    for other, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        checked = "healthcheck" in SERVICES[other] or SERVICES[other].get("build", {}).get("target") == "broker"
        assert checked, f"{other} is never healthy"
    if "network_mode" in service:
        assert service["network_mode"].removeprefix("service:") in service["depends_on"]
    for volume in service.get("volumes", ()):
        assert volume.split(":")[0] in STACK["volumes"]


def test_kafka_is_one_cluster_that_survives_a_broker() -> None:
    voters = {f"{service['environment']['KAFKA_NODE_ID']}@{name}:9093" for name, service in KAFKA.items()}
    assert len(voters) == 3
    for name, service in KAFKA.items():
        settings = service["environment"]
        assert set(settings["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")) == voters
        assert settings["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        assert service["hostname"] == name
        assert service["volumes"] == [f"{name}:{settings['KAFKA_LOG_DIRS']}"]
        assert all(isinstance(value, str) for value in settings.values())
        replication = {value for key, value in settings.items() if key.endswith("REPLICATION_FACTOR")}
        least = {value for key, value in settings.items() if key.endswith(("MIN_ISR", "MIN_INSYNC_REPLICAS"))}
        assert (replication, least) == ({"3"}, {"2"})
