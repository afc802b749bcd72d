"""The handlers of the management API, a file for each resource: each takes a Call and returns a Response.

Read queues.py first. engine/http/app.py says which path leads to which handler.
"""
