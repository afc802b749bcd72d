"""HTTP from a client that means no good: every route and method of the API, with names, numbers, bodies, queries and
encodings that somebody might try, and now and then what is no HTTP at all."""

import asyncio
import base64
import json
import random
from collections import Counter

from rewindmq.engine.http.app import ROUTES

ANSWER_SECONDS = 60
USER = "fuzz"
LOGIN = base64.b64encode(f"{USER}:{USER}".encode()).decode()
OPEN = ("/metrics", "/metrics/per-object", "/metrics/detailed", "/metrics/memory-breakdown", "/")
SELDOM = ("/queues/{vhost}/{queue}/at", "/queues/{vhost}/{queue}/restore", "/state", "/auth/hash_password/{password}")
NEVER = ("/nodes/{node}/listeners/suspend", "/nodes/{node}/app/stop")  # they close the listeners, on purpose
PATHS = [
    *(f"/api{path}" for path in ROUTES if path not in SELDOM + NEVER for _ in range(20)),
    *(f"/api{path}" for path in SELDOM),
    *(path for path in OPEN for _ in range(10)),
]
METHODS = ("GET", "GET", "GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "get", "BREW")
VHOST = "fuzz"
KNOWN = {
    "vhost": (VHOST, VHOST, VHOST, "new"),
    "queue": ("a", "b", "quorum", "stream"),
    "exchange": ("amq.topic", "x", "amq.default"),
    "name": ("p", "max-queues", "max-connections", "cluster_name", "m"),
    "user": ("other", "nobody"),
    "kind": ("q", "e"),
    "destination": ("a", "x"),
    "key": ("~", "a", "props"),
    "position": ("1", "2"),
    "component": ("operator_policy", "shovel"),
    "unit": ("days", "years", "months"),
    "within": ("1", "30"),
    "port": ("5672",),
    "protocol": ("amqp", "https"),
    "node": ("rewindmq@localhost", "1"),
    "subject": ("s",),
    "password": ("p",),
}
HOSTILE = (
    "%2F",
    "%00",
    "%0A",
    "%0d%0aset-cookie:x",
    "%FF%FE",
    "%C3%A9",
    "%E2%80%AE",
    "..",
    "%2e%2e%2f",
    "a" * 255,
    "b" * 256,
    "c" * 5_000,
    "9" * 20,
    "9" * 5_000,
    "-1",
    "0",
    "1e999",
    "NaN",
    "%25",
    "'%22%3Cscript%3E",
    "amq.rabbitmq.reply-to",
    "%ED%A0%80",
    "undefined",
    "{vhost}",
    "%",
    "%zz",
    "%D9%A3",
    "true",
    "",
)
QUERY = (
    "page",
    "page_size",
    "name",
    "use_regex",
    "sort",
    "sort_reverse",
    "columns",
    "time",
    "offset",
    "first",
    "count",
    "truncate",
    "if-unused",
    "if-empty",
    "family",
    "queue",
    "vhost",
    "partition",
    "disable_stats",
    "enable_queue_totals",
    "msg_rates_age",
    "msg_rates_incr",
    "lengths_age",
    "reason",
    "member",
    "file",
    "download",
)
VALUES = (
    "1",
    "true",
    "0",
    "-1",
    "9" * 20,
    "9" * 5_000,
    "(a%2B)%2B$",
    "^(.|.|.|.)*X",
    "(",
    "%00",
    "%FF",
    "a.b.c",
    ".",
    "..",
    ",,,",
    "2026-11-22T00:00:00Z",
    "0000-00-00",
    "99999-01-01T00:00:00Z",
    "mark:none",
    "queue_metrics",
    "name",
    "arguments.x.y",
    "",
    "%F0%9F%98%80",
    "x" * 3_000,
    "1e400",
    "٣",
    "message_stats",
    "guest",
)
KEYS = (
    "pattern",
    "definition",
    "priority",
    "apply-to",
    "value",
    "durable",
    "auto_delete",
    "arguments",
    "vhost",
    "name",
    "type",
    "node",
    "internal",
    "routing_key",
    "payload",
    "payload_encoding",
    "properties",
    "count",
    "ackmode",
    "encoding",
    "truncate",
    "password",
    "password_hash",
    "hashing_algorithm",
    "tags",
    "configure",
    "write",
    "read",
    "exchange",
    "users",
    "queues",
    "exchanges",
    "bindings",
    "policies",
    "permissions",
    "parameters",
    "vhosts",
    "description",
    "default_queue_type",
    "action",
    "strategy",
    "queue_pattern",
    "vhost_pattern",
    "undo",
    "at",
    "time",
    "into",
    "tracing",
    "reason",
    "headers",
    "expiration",
    "source",
    "destination",
    "destination_type",
    "properties_key",
    "x-max-length",
    "x-queue-type",
    "x-message-ttl",
    "max-length",
)
SCALARS: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    1e308,
    "",
    "a",
    "x" * 300,
    "9" * 5_000,
    "\x00",
    "\n",
    "é",
    "\u202e",
    "auto",
    "base64",
    "ack_requeue_true",
    "ack_requeue_false",
    "reject_requeue_false",
    "topic",
    "quorum",
    "stream",
    "classic",
    "(a+)+$",
    "(" * 300,
    "^(.|.|.|.)*X",
    ".*",
    "administrator",
    "queues",
    "all",
    "=",
    "sync",
    "2026-11-22T00:00:00Z",
    "mark:none",
    "purge",
    "q",
)
HEADERS = (
    "content-type: application/json",
    "content-type: multipart/form-data; boundary=x",
    "accept: */*",
    "content-encoding: gzip",
    "expect: 100-continue",
    "connection: close",
    "x-reason: \u00e9",
    "range: bytes=0-9",
)
POLICY: dict[str, object] = {"pattern": "^a", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"}
QUEUE: dict[str, object] = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 9}}
EXCHANGE: dict[str, object] = {"type": "topic", "durable": True, "internal": False, "arguments": {}}
PERMISSION: dict[str, object] = {"configure": ".*", "write": ".*", "read": ".*", "exchange": "amq.topic"}
VALID: dict[str, dict[str, object]] = {  # by the first words of a path
    "/queues/{vhost}/{queue}/get": {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 9},
    "/queues/{vhost}/{queue}/restore": {"undo": "purge", "at": "mark:m", "into": "b"},
    "/queues/{vhost}/{queue}/actions": {"action": "sync"},
    "/queues/": QUEUE,
    "/exchanges/{vhost}/{exchange}/publish": {
        "properties": {"headers": {"h": 1, "CC": ["a"]}, "delivery_mode": 2, "expiration": "9", "timestamp": 5},
        "routing_key": "a",
        "payload": "x",
        "payload_encoding": "string",
    },
    "/exchanges/": EXCHANGE,
    "/bindings/": {"routing_key": "a", "arguments": {"x-match": "all", "h": 1}},
    "/policies/": POLICY,
    "/operator-policies/": POLICY,
    "/permissions/": PERMISSION,
    "/topic-permissions/": PERMISSION,
    "/parameters/": {"value": POLICY},
    "/global-parameters/": {"value": {"a": [1]}},
    "/marks/": {"at": "now"},
    "/users/bulk-delete": {"users": ["other"]},
    "/users/": {"password": "p", "tags": "management,monitoring"},
    "/vhost-limits/": {"value": 9},
    "/user-limits/": {"value": 9},
    "/subjects/": {"reason": "r"},
    "/vhosts/": {"description": "d", "tags": "a,b", "default_queue_type": "quorum", "tracing": False},
    "/rebalance/": {"queue_pattern": "^q", "vhost_pattern": ".*"},
    "/connections/": {},
    "/definitions": {
        "vhosts": [{"name": VHOST}],
        "queues": [QUEUE | {"vhost": VHOST, "name": "d"}],
        "exchanges": [EXCHANGE | {"vhost": VHOST, "name": "dx"}],
        "policies": [POLICY | {"vhost": VHOST, "name": "p"}],
        "permissions": [PERMISSION | {"vhost": VHOST, "user": "other"}],
        "users": [{"name": "other", "tags": []}],
        "bindings": [
            {
                "vhost": VHOST,
                "source": "dx",
                "destination": "d",
                "destination_type": "queue",
                "routing_key": "",
                "arguments": {},
            }
        ],
        "parameters": [{"vhost": VHOST, "component": "operator_policy", "name": "o", "value": POLICY}],
    },
}
RAW = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00" * 50,
    b"GET /api/whoami\r\n\r\n",
    b"AMQP\x00\x00\x09\x01",
    b"GET " + b"/" * 70_000,
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2_000,
    b"\x16\x03\x01\x02\x00\x01",
    b"POST /api/definitions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"PUT /api/queues/%2F/q HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
)


class Requests:
    """Of one seed, always the same. What they change is in a vhost of their own, and no user's who is needed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def next(self) -> bytes:
        """A request, or what is none."""
        pick = self.random
        if pick.random() < 0.01:
            return pick.choice(RAW)
        template = pick.choice(PATHS)
        meant = tuple(ROUTES.get(template.removeprefix("/api"), {"GET": None}))
        method = pick.choice(METHODS if pick.random() < 0.25 else meant)
        path = "/".join(self.segment(part) for part in template.split("/"))
        if method == "DELETE" and template == "/api/vhosts/{vhost}":
            path = path.replace(VHOST, "new")  # what else is asked is about this one
        if pick.random() < 0.3:
            pairs = (f"{pick.choice(QUERY)}={pick.choice(VALUES)}" for _ in range(pick.choice((1, 2, 4))))
            path += "?" + "&".join(pairs)
        headers = [f"host: {pick.choice(('127.0.0.1', 'localhost', '127.0.0.1:1'))}"]
        if pick.random() < 0.97:
            headers.append(f"authorization: Basic {LOGIN}")
        elif pick.random() < 0.5:
            others = ("Basic =", "Bearer x", "Basic OjpB\x80", "Basic " + "A" * 9_000)
            headers.append(f"authorization: {pick.choice(others)}")
        has_body = method in ("PUT", "POST", "PATCH", "DELETE") or pick.random() < 0.05
        body = self.body(template.removeprefix("/api")) if has_body else b""
        length = len(body) if pick.random() < 0.98 else pick.choice((0, len(body) + 9, 10**30))
        headers.append(f"content-length: {length}")
        if pick.random() < 0.2:
            headers.append(pick.choice(HEADERS))
        return "\r\n".join((f"{method} {path} HTTP/1.1", *headers, "", "")).encode("latin-1", "replace") + body

    def segment(self, part: str) -> str:
        if not part.startswith("{"):
            return part
        pick = self.random
        if pick.random() < 0.85:
            return pick.choice(KNOWN.get(part[1:-1], ("a",)))
        return pick.choice(HOSTILE[1:] if part == "{vhost}" else HOSTILE)

    def body(self, template: str) -> bytes:
        """Mostly what the route takes, one value of it damaged."""
        pick = self.random
        kind = pick.random()
        meant = next((VALID[start] for start in VALID if template.startswith(start)), None)
        if kind < 0.6 and meant is not None:
            content = json.loads(json.dumps(meant))
            for _ in range(pick.choice((0, 1, 1, 2))):
                self.damage(content)
            return json.dumps(content).encode()
        if kind < 0.75:
            return json.dumps({pick.choice(KEYS): self.value(0) for _ in range(pick.choice((0, 1, 3, 8)))}).encode()
        if kind < 0.85:
            return json.dumps(self.value(0)).encode()
        return pick.choice(
            (
                b"",
                b"{",
                b"[" * 100_000,
                b'{"a":' * 5_000,
                b"nonsense",
                b"\xff\xfe",
                b'{"pattern":"\\ud800"}',
                b"NaN",
                b"1" * 10_000,
                b'{"durable":1,"durable":2}',
                pick.randbytes(99),
                b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n{}\r\n--x--",
                b'{"arguments":{"x-max-length":1e999}}',
                b'{"value":' + b"9" * 5_000 + b"}",
                b'"' + b"a" * 100_000 + b'"',
            )
        )

    def damage(self, content: object) -> None:
        """One value of it, somewhere."""
        pick = self.random
        while isinstance(content, dict | list) and content:
            key = pick.choice(list(content)) if isinstance(content, dict) else pick.randrange(len(content))
            inner = content[key]
            if isinstance(inner, dict | list) and inner and pick.random() < 0.7:
                content = inner
                continue
            if pick.random() < 0.2:
                del content[key]
            else:
                content[key] = self.value(1)
            return

    def value(self, depth: int) -> object:
        pick = self.random
        kind = pick.random()
        if depth > 4 or kind < 0.7:
            return pick.choice(SCALARS)
        if kind < 0.85:
            return [self.value(depth + 1) for _ in range(pick.randrange(4))]
        return {pick.choice(KEYS): self.value(depth + 1) for _ in range(pick.randrange(4))}


async def attack(port: int, seed: int, count: int, told: Counter[str], found: list[str]) -> None:
    """Send so many requests. `told`: how many were answered with which status; `found`: those that met a defect."""
    requests = Requests(seed)
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number in range(count):
        request = requests.next()
        if streams is None:
            streams = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
        status, kept = await answered(streams, request)
        told["requests"] += 1
        told[status] += 1
        if status == "500":
            found.append(f"500: seed {seed}, request {number}: {request[:2_000]!r}")
        if not kept:
            streams[1].transport.abort()
            streams = None
    if streams is not None:
        streams[1].transport.abort()


async def answered(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> tuple[str, bool]:
    """The status, and whether the connection can be used again. "none": it was closed, or the request is not whole."""
    reader, writer = streams
    head, _, body = request.partition(b"\r\n\r\n")
    whole = f"content-length: {len(body)}".encode() in head.split(b"\r\n")
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(ANSWER_SECONDS if whole else 0.3):
            answer = await reader.readuntil(b"\r\n\r\n")
            while answer.startswith(b"HTTP/1.1 100"):
                answer = await reader.readuntil(b"\r\n\r\n")
            status = answer.split(b" ", 2)[1].decode()
            kept = whole and b"connection: close" not in answer.lower() and b"content-length:" in answer.lower()
            if kept and not head.startswith(b"HEAD") and status not in ("204", "304"):
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
            return status, kept or status == "204"
    except TimeoutError:
        return ("late" if whole else "none"), False
    except (ConnectionError, asyncio.IncompleteReadError):
        return "none", False
