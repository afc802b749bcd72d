"""A real time-stamp authority on loopback, for tests: `openssl ts -reply` behind a small HTTP server (RFC 3161).

with TimeStampAuthority(directory) as authority:
    authority.url, authority.roots
    authority.answer = lambda request: (200, "text/plain", b"no")      what it says in place of a stamp
"""

import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.support.certificates import Authority, openssl
from tests.support.needs import needed

QUERY, REPLY = "application/timestamp-query", "application/timestamp-reply"
CONFIG = """
[tsa]
default_tsa = here
[here]
serial = {home}/serial
crypto_device = builtin
signer_cert = {home}/tsa.pem
certs = {home}/ca.pem
signer_key = {home}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ordering = no
tsa_name = yes
ess_cert_id_chain = no
ess_cert_id_alg = sha256
"""
Answer = tuple[int, str, bytes]


class TimeStampAuthority:
    """An authority with a certificate of its own, and the root that the certificate leads to."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.answer: Callable[[bytes], Answer] = self.stamp
        self.requests = 0
        root = Authority(home)
        self.roots = root.certificate
        pair, extensions = root.issue("tsa", "/CN=tsa.example"), home / "tsa.ext"
        extensions.write_text("extendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n")
        signed = ["-CA", str(root.certificate), "-CAkey", str(root.key), "-CAcreateserial", "-days", "2"]
        request = ["x509", "-req", "-in", str(home / "tsa.csr"), *signed, "-extfile", str(extensions)]
        openssl(*request, "-out", str(pair.certificate))
        (home / "tsa.cnf").write_text(CONFIG.format(home=home))
        (home / "serial").write_text("01\n")

    def stamp(self, request: bytes) -> Answer:
        """The answer of openssl to a request."""
        query, reply = self.home / "query", self.home / "reply"
        query.write_bytes(request)
        openssl("ts", "-reply", "-config", str(self.home / "tsa.cnf"), "-queryfile", str(query), "-out", str(reply))
        return 200, REPLY, reply.read_bytes()

    def __enter__(self) -> Self:
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == QUERY
                authority.requests += 1
                status, kind, body = authority.answer(request)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def text_of(stamp: Path) -> str:
    """Return openssl's description of a stored stamp."""
    command = [needed("openssl"), "ts", "-reply", "-in", str(stamp), "-text"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
