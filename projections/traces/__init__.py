"""Spans of OpenTelemetry, made of the history after the fact. Nothing here is called while a message passes.

trace_context.py    the trace that a message belongs to
trace_outcomes.py   the outcomes of messages that belong to a trace
spans.py            spans of these outcomes
otlp.py             spans sent to a collector
"""
