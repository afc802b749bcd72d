"""Definitions with something of each category, as RabbitMQ exports them."""

from typing import Any

CATEGORIES = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)


RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 3}
WHOLE: dict[str, Any] = {
    "rabbit_version": "3.13.7",
    "users": [
        {"name": "boss", "password": "secret", "tags": ["administrator"], "limits": {"max-channels": 100}},
        {
            "name": "moved",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "management",
        },
    ],
    "vhosts": [
        {"name": "v", "metadata": {"description": "moved", "tags": ["a"], "default_queue_type": "quorum"}},
        {"name": "/", "limits": [], "metadata": {"description": "Default virtual host", "tags": []}},
    ],
    "permissions": [{"user": name, "vhost": "v", **RIGHTS} for name in ("boss", "moved")],
    "topic_permissions": [{"user": "moved", "vhost": "v", "exchange": "amq.topic", "write": "^a", "read": "^b"}],
    "parameters": [
        {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 4}},
        {
            "vhost": "v",
            "component": "operator_policy",
            "name": "most",
            "value": {"pattern": ".*", "definition": {"max-length": 1000}, "priority": 0, "apply-to": "queues"},
        },
    ],
    "global_parameters": [{"name": "cluster_tags", "value": {"region": "north"}}],
    "policies": [
        {
            "vhost": "v",
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"message-ttl": 60000},
            "priority": 2,
        }
    ],
    "queues": [
        {"name": "q1", "vhost": "v", "durable": True, "auto_delete": False, "arguments": QUORUM},
        {"name": "q2", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}},
        {"name": "q3", "vhost": "v", "durable": True, "auto_delete": True, "arguments": {"x-max-length": 5}},
        {"name": "amq.gen-x", "vhost": "v", "durable": False, "auto_delete": True, "arguments": {}},
    ],
    "exchanges": [
        {
            "name": "x",
            "vhost": "v",
            "type": "headers",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "amq.fanout"},
        },
        {
            "name": "y",
            "vhost": "v",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": True,
            "arguments": {},
        },
    ],
    "bindings": [
        {
            "source": "x",
            "vhost": "v",
            "destination": "q1",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "any", "a": 1, "b": [True, {"c": "d"}]},
        },
        {
            "source": "amq.topic",
            "vhost": "v",
            "destination": "y",
            "destination_type": "exchange",
            "routing_key": "a.#",
            "arguments": {},
        },
        {
            "source": "amq.topic",
            "vhost": "v",
            "destination": "amq.gen-x",
            "destination_type": "queue",
            "routing_key": "a",
            "arguments": {},
        },
    ],
}
