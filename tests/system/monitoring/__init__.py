"""Prometheus and Grafana: dashboards and alerts."""
