"""What a broker counts since its start, for /metrics: named as RabbitMQ's Prometheus metrics without `rabbitmq_`."""

COUNTERS = (
    "connections_opened_total", "connections_closed_total", "channels_opened_total", "channels_closed_total",
    "queues_declared_total", "queues_created_total", "queues_deleted_total", "global_messages_received_total",
    "global_messages_received_confirm_total", "global_messages_confirmed_total", "global_messages_routed_total",
    "global_messages_unroutable_dropped_total", "global_messages_unroutable_returned_total",
    "global_messages_delivered_total", "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_consume_manual_ack_total", "global_messages_delivered_get_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total", "global_messages_get_empty_total",
    "global_messages_redelivered_total", "global_messages_acknowledged_total",
    "global_messages_dead_lettered_confirmed_total", "global_messages_dead_lettered_delivery_limit_total",
    "global_messages_dead_lettered_expired_total", "global_messages_dead_lettered_maxlen_total",
    "global_messages_dead_lettered_rejected_total",
)  # fmt: skip
