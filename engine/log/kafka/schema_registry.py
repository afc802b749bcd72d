"""A client of a schema registry with Confluent's HTTP interface: Confluent's own, Apicurio's, Karapace, Redpanda's.

    with SchemaRegistry("https://registry:8081", authorization="Bearer ...") as registry:
        ids = register(registry, "rewindmq.queues-value")       {fingerprint in header order: id}

The registry keeps the released schemas as versions of one subject, the oldest first, as Confluent's tools expect.
Nothing is registered twice, because a registry returns the id of a schema that it has.
"""

import json
import ssl
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2

from rewindmq.schemas.registry import released_in_order, released_schema_json

SECONDS = 30.0
MOST_BYTES = 16 * 1024 * 1024  # of an answer
JSON = "application/vnd.schemaregistry.v1+json"


class RegistryError(Exception):
    """The registry refuses, or the answering server is not a registry."""


class RegistryAway(RegistryError):
    """The registry does not answer, or is temporarily unable to."""


class RegistryDenied(RegistryError):
    """The registry requires another login, or the user lacks a permission."""


class Incompatible(RegistryError):
    """The subject has an unrelated schema."""


class SchemaRegistry:
    """A schema registry. `authorization`: the header of that name; "": none. `trust`: None over plain HTTP."""

    def __init__(self, url: str, authorization: str = "", trust: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self.place = urlsplit(url).netloc
        headers = {"accept": JSON, "content-type": JSON}
        if authorization:
            headers["authorization"] = authorization
        self._http = httpx2.Client(
            headers=headers, timeout=SECONDS, trust_env=False, verify=False if trust is None else trust
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def id_of(self, subject: str, schema: str) -> int | None:
        """Return the id of a schema in the subject, or None."""
        status, answer = self._ask(f"/subjects/{quote(subject, safe='')}?normalize=true", {"schema": schema})
        return None if status == 404 else self._id(answer)

    def require_compatible(self, subject: str, schema: str) -> None:
        """Check that the registry would accept the schema. Raises Incompatible, with the registry's reasons."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        status, answer = self._ask(path, {"schema": schema})
        if status == 404:  # the subject has no version to compare with
            return
        if answer.get("is_compatible") is not True:
            reasons = answer.get("messages")
            shown = "; ".join(str(each) for each in reasons[:3]) if isinstance(reasons, list) and reasons else ""
            raise Incompatible(_incompatible(subject, shown))

    def add(self, subject: str, schema: str) -> int:
        """Register a schema as the newest version of the subject, and return its id."""
        status, answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions?normalize=true", {"schema": schema})
        if status == 404:
            raise RegistryError(
                f"{self.url} is not a schema registry: it has no /subjects (Apicurio: .../apis/ccompat/v7)"
            )
        return self._id(answer)

    def _id(self, answer: dict[str, Any]) -> int:
        found = answer.get("id")
        if type(found) is not int or not 0 <= found < 1 << 32:
            raise RegistryError(f"{self.url} is not a schema registry: its answer has no id")
        return found

    def _ask(self, path: str, content: object) -> tuple[int, dict[str, Any]]:
        """Return the status, 200 or 404, and the answer. Raises RegistryError."""
        try:
            with self._http.stream("POST", self.url + path, content=json.dumps(content, allow_nan=False)) as response:
                body = b""
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise RegistryError(
                            f"{self.url} is not a schema registry: an answer has more than {MOST_BYTES} bytes"
                        )
        except httpx2.TransportError as error:
            raise RegistryAway(f"the schema registry at {self.place} does not answer: {error or 'timeout'}") from None
        except (httpx2.InvalidURL, httpx2.DecodingError) as error:
            raise RegistryError(f"{self.url} is not a schema registry: {error}") from None
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        status = response.status_code
        said = answer.get("message") if isinstance(answer, dict) else None
        why = f"HTTP {status}" + (f", {' '.join(str(said).split())[:300]}" if said else "")
        if status in (401, 403):
            raise RegistryDenied(f"the schema registry at {self.place} refuses the login or a right: {why}")
        if status == 409:
            raise Incompatible(_incompatible(path.split("/")[2], str(said or "")))
        if status in (429, 502, 503, 504):
            raise RegistryAway(f"the schema registry at {self.place} cannot answer now: {why}")
        if status not in (200, 404):
            raise RegistryError(f"the schema registry at {self.place} refuses: {why}")
        if status == 200 and not isinstance(answer, dict):
            raise RegistryError(f"{self.url} is not a schema registry: its answer is not a JSON object")
        return status, answer if isinstance(answer, dict) else {}


def _incompatible(subject: str, why: str) -> str:
    said = f": {' '.join(why.split())[:300]}" if why else ""
    return f"subject {subject} has a schema of another program{said}: use another --kafka-prefix, or delete the subject"


def register(registry: SchemaRegistry, subject: str) -> dict[str, int]:
    """Register every released schema, and return the id of each, by fingerprint. Raises RegistryError.

    A schema that the subject already has is only looked up, which needs no write permission."""
    ids: dict[str, int] = {}
    for fingerprint in released_in_order():
        schema = json.dumps(
            json.loads(released_schema_json(fingerprint)), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        found = registry.id_of(subject, schema)
        if found is None:
            registry.require_compatible(subject, schema)
            found = registry.add(subject, schema)
        ids[fingerprint] = found
    return ids
