"""Holds answers and bodies of the HTTP API against its OpenAPI document (/api/openapi.json).

Strict: a field that the document does not name is a fault, though clients are told to bear with new ones.
"""

import json
from collections.abc import Iterable
from typing import Any

import httpx2
from jsonschema import Draft202012Validator

from rewindmq.schemas.json_schemas import DIALECT

Document = dict[str, Any]


def closed(schema: Any) -> Any:
    """The schema with closed objects: those whose fields are named have no others."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "object" in schema.get("type", ()):
        found["additionalProperties"] = False
    return found


def faults_of(schema: Document, value: object) -> list[str]:
    """Return the faults of a value by this schema, in words."""
    found = []
    for error in Draft202012Validator(schema).iter_errors(value):
        while error.context:  # the nearest of several shapes
            error = max(error.context, key=lambda each: len(each.absolute_path))
        found.append(f"{error.json_path}: {error.message[:300]}")
    return found


def strict(document: Document) -> Document:
    """The document with closed objects."""
    return document | {"components": closed(document["components"]), "paths": closed(document["paths"])}


class Reference:
    """The document of a broker, ready to judge."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.strict = strict(document)
        self.seen: set[str] = set()  # SCHEMA.field of the answers that were judged

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(method, path, operation) of each one."""
        paths = self.strict["paths"].items()
        return [(method.upper(), path, each) for path, methods in paths for method, each in methods.items()]

    def resolved(self, item: dict[str, Any]) -> dict[str, Any]:
        """The item, or what it refers to."""
        found: Any = self.strict
        if "$ref" not in item:
            return item
        for name in item["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        assert isinstance(found, dict)
        return found

    def faults_of(self, schema: dict[str, Any], value: object) -> list[str]:
        """Return the faults of a value by a schema of this document, in words."""
        return faults_of({"$schema": DIALECT, "components": self.strict["components"], **schema}, value)

    def faults_of_body(self, operation: dict[str, Any], body: object) -> list[str]:
        """Return the faults of the body of a request."""
        if "requestBody" not in operation:
            return ["the operation has no body"]
        return self.faults_of(operation["requestBody"]["content"]["application/json"]["schema"], body)

    def faults_of_answer(self, operation: dict[str, Any], answer: httpx2.Response, text: bytes) -> list[str]:
        """Return the faults of an answer: of its status, its media type or its JSON."""
        status = str(answer.status_code)
        if status == "500" or status not in operation["responses"]:
            return [f"status {status}: {text[:300]!r}"]
        declared = self.resolved(operation["responses"][status]).get("content")
        if declared is None:
            return [f"content {text[:100]!r}"] if text else []
        media = answer.headers["content-type"].partition(";")[0]
        if media not in declared:
            return [f"media type {media}"]
        if media != "application/json":
            return []
        value = json.loads(text)
        self._see(declared[media]["schema"], value)
        return self.faults_of(declared[media]["schema"], value)

    def _see(self, schema: dict[str, Any], value: object) -> None:
        """Take note of the fields that an answer has."""
        name, schema = self._named(schema)
        if isinstance(value, list):
            for each in value:
                self._see(schema.get("items") or {}, each)
        elif isinstance(value, dict) and set(schema.get("required", ())) <= value.keys():
            for field, inner in value.items():
                self.seen.add(f"{name}.{field}")
                self._see(schema.get("properties", {}).get(field) or schema.get("additionalProperties") or {}, inner)
        for other in schema.get("anyOf", ()):
            self._see(other, value)

    def _named(self, schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """A schema, and its name if it has one."""
        return str(schema.get("$ref", "")).rpartition("/")[2], self.resolved(schema)

    def never_seen(self, operations: Iterable[dict[str, Any]]) -> set[str]:
        """The optional fields of the answers of these operations that no answer had: SCHEMA.field."""
        found: set[str] = set()
        waiting: list[Any] = [self.resolved(each) for of in operations for each in of["responses"].values()]
        known: set[str] = set()
        while waiting:
            each = waiting.pop()
            if isinstance(each, list):
                waiting += each
            elif isinstance(each, dict):
                waiting += each.values()
                name, schema = self._named(each)
                if name and name not in known:
                    known.add(name)
                    waiting.append(schema)
                    optional = schema.get("properties", {}).keys() - set(schema.get("required", ()))
                    found |= {f"{name}.{field}" for field in optional}
        return found - self.seen
