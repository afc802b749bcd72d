"""A real Helm, and a decoder of what it renders, for tests of the chart in compose/kubernetes.

    rendered(values)      the objects of the chart, decoded strictly against the types of Kubernetes' API
    refused(values)       Helm's error

Go builds both once into tests/support/helm/target (`make helm`). The versions are those of go.mod.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.installed_once import installing
from tests.support.needs import needed
from tests.support.running import ROOT

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
HELM, DECODE = TARGET / "helm", TARGET / "decode"
CHART = ROOT / "compose" / "kubernetes" / "rewindmq"


def require_helm() -> None:
    """Skip the tests where Helm cannot be built; fail in CI."""
    if not HELM.exists():
        needed("go")


def build() -> None:
    """Build both programs, once for this checkout."""
    with installing(TARGET, "built") as missing:
        if missing:
            environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false"}
            for binary, package in ((HELM, "helm.sh/helm/v4/cmd/helm"), (DECODE, ".")):
                command = [needed("go"), "build", "-ldflags", "-s -w", "-o", str(binary), package]
                subprocess.run(command, check=True, env=environment, cwd=HERE)


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm."""
    build()
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True)


def template(*options: str) -> "subprocess.CompletedProcess[str]":
    """Render the chart as the release `mq`."""
    return helm("template", "mq", str(CHART), *options)


def rendered(*options: str) -> dict[str, dict[str, Any]]:
    """Return the chart's objects by KIND/NAME, each decoded strictly."""
    done = template(*options)
    assert done.returncode == 0, done.stderr
    names = decoded(done.stdout)
    objects = {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout) if each}
    assert sorted(names) == sorted(objects)
    return objects


def decoded(manifests: str) -> list[str]:
    """Decode manifests strictly; return KIND/NAME of each."""
    done = subprocess.run([str(DECODE)], input=manifests, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


if __name__ == "__main__":
    build()
