"""A small identity provider in a thread: it signs tokens with real keys, and serves its configuration and its keys."""

import base64
import hmac
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

ALL = "rabbitmq.configure:*/* rabbitmq.write:*/* rabbitmq.read:*/*"
AUDIENCE = "rabbitmq"


class Provider:
    """`issuer` is its URL. `asked` lists the paths that clients asked for. `document`: what it serves instead of its
    keys; `status`: its answers' status; `away`: it closes each connection without an answer. `given`: what it
    gives for a code; `forms`: what it was asked for one."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        provider = self
        self.keys: dict[str, Any] = {}
        self.algorithms: dict[str, str] = {}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.given: object = {}
        self.authority: Path | None = None  # of its certificate
        self.document: bytes | None = None
        self.status = 200
        self.away = False
        self.gate = threading.Event()  # answers wait for it
        self.gate.set()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                provider.gate.wait(30)
                if provider.away:
                    self.close_connection = True
                    return
                body = provider.answer(self.path)
                self.send_response(provider.status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                provider.forms.append({name: values[0] for name, values in form.items()})
                self.do_GET()

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.issuer = f"{scheme}://127.0.0.1:{self.server.server_port}"
        self.add("first")
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, key_id: str, algorithm: str = "ES256") -> None:
        """Make one more key, for tokens of an algorithm."""
        parameters: Any = {"kid": key_id, "use": "sig"}
        key: Any
        if algorithm.startswith("ES"):
            key = ECKey.generate_key({"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm], parameters)
        elif algorithm.startswith("Ed"):
            key = OKPKey.generate_key("Ed25519", parameters)
        else:
            key = RSAKey.generate_key(2048, parameters)
        self.keys[key_id] = key
        self.algorithms[key_id] = algorithm

    def answer(self, path: str) -> bytes:
        """The document at a path."""
        if path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": f"{self.issuer}/auth?x=1", "token_endpoint": f"{self.issuer}/token"}
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"} | places).encode()
        if path == "/token":
            return json.dumps(self.given).encode()
        if self.document is not None:
            return self.document
        return self.jwks()

    def jwks(self) -> bytes:
        """The public keys."""
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()

    def token(self, scope: object = ALL, key_id: str = "first", seconds: float = 300, **claims: Any) -> str:
        """A token of user `sub` (ann). A claim that is None is left out."""
        now = int(time.time())
        stated = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + int(seconds)}
        stated |= {"scope": scope} | claims
        algorithm = self.algorithms[key_id]
        stated = {name: value for name, value in stated.items() if value is not None}
        return jwt.encode({"alg": algorithm, "kid": key_id}, stated, self.keys[key_id], [algorithm])

    def unsigned(self) -> str:
        """A token without a signature (`alg: none`)."""
        payload = self.token().split(".")[1]
        return f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{payload}."

    def confused(self) -> str:
        """A token whose HMAC has the provider's public key for its secret."""
        signed = f"{encoded({'alg': 'HS256', 'kid': 'first'})}.{self.token().split('.')[1]}"
        digest = hmac.digest(self.keys["first"].as_pem(private=False), signed.encode(), "sha256")
        return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    def forged(self) -> str:
        """A token with another user in it than was signed."""
        head, payload, signature = self.token().split(".")
        claims = json.loads(decoded(payload)) | {"sub": "root"}
        return f"{head}.{encoded(claims)}.{signature}"

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@contextmanager
def running_provider(certificate: tuple[Path, Path] | None = None) -> Iterator[Provider]:
    provider = Provider(certificate)
    try:
        yield provider
    finally:
        provider.close()
