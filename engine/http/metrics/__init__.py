"""Prometheus' metrics; the paths are in engine/http/resources/metrics.py.

exposition.py   the text format        per_object.py   metrics of queues, channels and connections
node.py         of the node            ours.py         those that RabbitMQ does not have
history.py      what history costs
"""
