"""The chart for Kubernetes, rendered by a real Helm, decoded strictly, and its command line run by a real broker.

`make chart` runs this file. There is no cluster: what the objects do in one is untested."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from rewindmq import __version__
from tests.support.certificates import Authority
from tests.support.helm.programs import CHART, DECODE, build, decoded, helm, rendered, require_helm, template
from tests.support.kafka.cluster import KafkaCluster
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.rare

VALUES = ROOT / "compose" / "kubernetes" / "values"
ALERTS = ROOT / "compose" / "monitoring" / "alerts.yml"
UNIT = (ROOT / "compose" / "rewindmq.service").read_text()
FORMS = {
    "embedded": ["StatefulSet", "ServiceMonitor", "PrometheusRule"],
    "kafka": ["StatefulSet", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"],
}


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    require_helm()
    build()


def values(form: str) -> tuple[str, str]:
    return ("--values", str(VALUES / f"{form}.yaml"))


def one(objects: dict[str, dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [each for name, each in objects.items() if name.startswith(f"{kind}/")]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_its_objects(form: str) -> None:
    objects = rendered(*values(form))
    always = ["ConfigMap", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"]
    assert sorted(name.split("/")[0] for name in objects) == sorted([*always, *FORMS[form]])
    stateful = one(objects, "StatefulSet")["spec"]
    assert stateful["replicas"] == {"embedded": 1, "kafka": 3}[form]
    headless = objects[f"Service/{stateful['serviceName']}"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["selector"] == stateful["selector"]["matchLabels"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    assert one(objects, "PodDisruptionBudget")["spec"]["selector"] == stateful["selector"]
    monitor = one(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= objects["Service/mq-nodes"]["metadata"]["labels"].items()
    job = objects["Service/mq-nodes"]["metadata"]["labels"][monitor["jobLabel"]]
    assert f'job="{job}"' in ALERTS.read_text(), "the alerts are about this job"


@pytest.mark.parametrize("form", FORMS)
def test_pods_are_confined(form: str) -> None:
    pod = one(rendered(*values(form)), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "variables of services would be taken for settings"
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text()
    assert f"useradd --uid {pod['securityContext']['runAsUser']} " in dockerfile
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    secret = re.compile("pass|secret|token|key", re.IGNORECASE)
    for variable in container["env"]:
        if secret.search(variable["name"]):
            assert variable["name"].endswith("_FILE")
            assert variable["value"].startswith("/etc/rewindmq/")


@pytest.mark.parametrize("form", FORMS)
def test_times_are_those_of_the_unit_of_systemd(form: str) -> None:
    pod = one(rendered(*values(form)), "StatefulSet")["spec"]["template"]["spec"]
    assert f"TimeoutStopSec={pod['terminationGracePeriodSeconds'] // 60}min\n" in UNIT
    alive = pod["containers"][0]["livenessProbe"]
    assert f"WatchdogSec={alive['periodSeconds'] * alive['failureThreshold'] // 60}min\n" in UNIT


def test_the_rules_are_those_of_the_alerts(tmp_path: Path) -> None:
    rules = one(rendered(*values("embedded")), "PrometheusRule")["spec"]
    assert rules == yaml.safe_load(ALERTS.read_text())
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rules))
    done = subprocess.run([needed("promtool"), "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_has_the_alerts(tmp_path: Path) -> None:
    """In the checkout they are a link."""
    assert (CHART / "alerts.yml").is_symlink()
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    [package] = tmp_path.glob("*.tgz")
    done = helm("template", "mq", str(package), *values("embedded"))
    assert done.returncode == 0, done.stderr
    assert "alert: RewindMQDown" in done.stdout


def test_helm_finds_nothing_to_say() -> None:
    for form in FORMS:
        done = helm("lint", "--strict", str(CHART), *values(form))
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_version_is_that_of_the_broker() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_a_misspelt_field_is_found() -> None:
    done = template(*values("embedded"))
    assert decoded(done.stdout)
    for field, wrong in (("minReadySeconds", "minReadySecond"), ("jobLabel", "jobLabels"), ("drop:", "dropped:")):
        broken = done.stdout.replace(field, wrong)
        assert broken != done.stdout
        found = subprocess.run([str(DECODE)], input=broken, capture_output=True, text=True)
        assert (found.returncode, found.stderr.count("\n")) == (1, 1)
        assert re.search(rf'unknown field "(\S+\.)?{wrong.rstrip(":")}"', found.stderr), found.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "set firstUser.secret to the name of a Secret with the first user's password"),
        (["--set", "firstUser.secret=x,kafka.nodes=0"], "at '/kafka/nodes': minimum: got 0, want 1"),
        (["--set", "firstUser.secret=x,nodes=3"], "additional properties 'nodes' not allowed"),
        (["--set", "firstUser.secret=x,settings.data=/x"], "at '/settings/data': false schema"),
        (["--set", "firstUser.secret=x,storage.size=much"], "at '/storage/size'"),
        (["--set", "firstUser.secret=x,service.type=Elsewhere"], "at '/service/type'"),
    ],
)
def test_bad_values_are_refused(options: list[str], said: str) -> None:
    done = template(*options)
    assert done.returncode == 1
    found = [line for line in done.stderr.splitlines() if line.startswith(("- at", "Error: execution"))]
    assert [said in line for line in found] == [True], done.stderr


class AsInThePod(RunningBroker):
    """A broker with the arguments of the chart's container, and a directory in place of the pod's root.

    `changed`: parts of the settings that name what only a cluster has."""

    program = ("-m", "rewindmq")

    def __init__(self, objects: dict[str, dict[str, Any]], directory: Path, changed: dict[str, str]) -> None:
        pod = one(objects, "StatefulSet")["spec"]["template"]["spec"]
        [self.container] = pod["containers"]
        self.ports = {each["name"]: free_port() for each in self.container["ports"]}
        text = one(objects, "ConfigMap")["data"]["rewindmq.toml"]
        for mount in self.container["volumeMounts"]:
            here = directory / mount["mountPath"].strip("/")
            text = text.replace(f'"{mount["mountPath"]}', f'"{here}')
        for old, new in ({"0.0.0.0": "127.0.0.1"} | changed).items():
            assert old in text
            text = text.replace(old, new)
        for port in self.container["ports"]:
            text = text.replace(f"= {port['containerPort']}\n", f"= {self.ports[port['name']]}\n")
        amqp, http = self.ports.get("amqp") or free_port(), self.ports.get("http")
        text += f"\namqp_port = {amqp}\n" + (f"http_port = {http}\n" if http else "")
        self.file = directory / "etc/rewindmq/rewindmq.toml"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)
        super().__init__(directory, ports=(amqp, http or self.ports["https"]))

    def command(self, command: list[str]) -> list[str]:
        python, *_ = command
        given = [each.replace("$(POD_NAME)", "mq-0") for each in self.container["args"]]
        return [python, *self.program, *(str(self.file) if each.endswith(".toml") else each for each in given)]

    def probed(self, kind: str) -> int:
        """Ask what the kubelet asks; return the status."""
        probe = self.container[kind]["httpGet"]
        address = f"{probe.get('scheme', 'HTTP').lower()}://127.0.0.1:{self.ports[probe['port']]}{probe['path']}"
        return httpx2.get(address, verify=False, trust_env=False).status_code


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def test_a_broker_takes_the_embedded_form(tmp_path: Path) -> None:
    secret = tmp_path / "etc/rewindmq/first-user/password"
    secret.parent.mkdir(parents=True)
    secret.write_text("a password\n")
    broker = AsInThePod(rendered(*values("embedded")), tmp_path, {})
    try:
        assert [broker.probed(probe) for probe in PROBES] == [200, 200, 200]
        api = httpx2.Client(base_url=broker.http_url, auth=("operator", "a password"), trust_env=False)
        assert api.get("/api/overview").json()["node"] == "mq-0"
        assert api.post("/api/nodes/mq-0/app/stop").status_code == 204
        assert [broker.probed(probe) for probe in PROBES] == [200, 200, 503], "no restart, but no clients"
    finally:
        assert broker.stop() == 0


def test_a_broker_takes_the_form_on_kafka(tmp_path: Path, kafka: KafkaCluster) -> None:
    folder = tmp_path / "etc/rewindmq"
    for name in ("first-user", "tls", "secrets/kafka-login", "secrets/archive-login"):
        (folder / name).mkdir(parents=True)
    (folder / "first-user/password").write_text("a password\n")
    (folder / "secrets/kafka-login/kafka.secret").write_text("client.id=of-a-pod\n")
    (folder / "secrets/archive-login/credentials").write_text("AWS_ACCESS_KEY_ID=x\n")
    pair = Authority(tmp_path).issue("node", "/CN=node", "IP:127.0.0.1")
    shutil.copy(pair.certificate, folder / "tls/tls.crt")
    shutil.copy(pair.key, folder / "tls/tls.key")
    changed = {
        "kafka-1:9093,kafka-2:9093,kafka-3:9093": kafka.bootstrap,
        "s3://bucket/rewindmq": str(tmp_path / "archive"),
    }
    broker = AsInThePod(rendered(*values("kafka"), "--set", "kafka.prefix=of-the-chart"), tmp_path, changed)
    try:
        assert [broker.probed(probe) for probe in PROBES] == [200, 200, 200]
    finally:
        assert broker.stop() == 0
