"""A real schema registry on loopback, for tests: Apicurio's, with Confluent's HTTP interface, in memory.

    with RegistryServer(directory) as registry:
        registry.url                            .../apis/ccompat/v7
        registry.guarded_url                    the same behind a HAProxy, which wants a login or a token

Maven fetches it once into tests/support/registry/target (`make registry`). It dies with the process that started it.
"""

import subprocess
import time
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.support.deadlines import until
from tests.support.installed_once import installing
from tests.support.needs import needed
from tests.support.ports import free_port
from tests.support.running import start_process

VERSION = "3.0.9"  # the last one for Java 17
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"  # later ones want the parents of its POM, too
TARGET = Path(__file__).resolve().parent / "target"
PROGRAM = TARGET / f"apicurio-registry-app-{VERSION}-runner.jar"
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
START_SECONDS = 300  # of a machine with other work; it takes 7 s of CPU
USER, PASSWORD, TOKEN = "clerk", "a pass:word", "a.bearer-token"


def build() -> None:
    """Fetch the registry, once for this checkout."""
    with installing(TARGET, VERSION) as missing:
        if missing:
            command = [needed("mvn"), "-B", "-q", PLUGIN, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={TARGET}"]
            subprocess.run(command, check=True, cwd=TARGET)
            [packed] = TARGET.glob("*.tar.gz")
            subprocess.run(["tar", "xzf", str(packed), "-C", str(TARGET)], check=True)
            packed.unlink()


class RegistryServer:
    """The registry, and a HAProxy before it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port, self._guarded = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self.guarded_url = f"http://127.0.0.1:{self._guarded}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        build()
        ports = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}")
        self._output = self._directory / "registry.log"
        with self._output.open("wb") as output:
            command = [needed("java"), *JAVA, *ports, "-jar", str(PROGRAM)]
            self._registry = start_process(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(self._is_there, "the registry does not answer", seconds=START_SECONDS)
        return self

    def guard(self) -> None:
        """Let the HAProxy take connections."""
        config = self._directory / "haproxy.cfg"
        config.write_text(
            "defaults\n  mode http\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n"
            f'userlist clerks\n  user {USER} insecure-password "{PASSWORD}"\n'
            f"listen guarded\n  bind 127.0.0.1:{self._guarded}\n"
            f'  acl token req.hdr(authorization) -m str "Bearer {TOKEN}"\n'
            "  http-request auth unless token or { http_auth(clerks) }\n"
            f"  server registry 127.0.0.1:{self._port}\n"
        )
        self._proxy = start_process([needed("haproxy"), "-f", str(config), "-db"], stderr=subprocess.PIPE)

        def answers() -> bool:
            try:
                return httpx2.get(self.guarded_url, trust_env=False).status_code == 401
            except httpx2.TransportError:
                return False

        until(answers, "the HAProxy does not answer")

    def __exit__(self, *_: object) -> None:
        for process in (self._registry, getattr(self, "_proxy", None)):
            if process is not None:
                process.kill()
                process.wait()

    def _is_there(self) -> bool:
        time.sleep(0.3)  # it needs the processor itself
        assert self._registry.poll() is None, self._output.read_text()
        try:
            return httpx2.get(f"{self.url}/subjects", trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, trust_env=False).raise_for_status().json()

    def put(self, path: str, content: Any) -> None:
        httpx2.put(self.url + path, json=content, trust_env=False).raise_for_status()

    def post(self, path: str, content: Any) -> None:
        httpx2.post(self.url + path, json=content, trust_env=False).raise_for_status()
