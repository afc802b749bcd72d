"""The broker's answers to clients, for AMQP and HTTP alike. Read broker.py first, then turns.py.

broker.py           the parts, put together             turns.py                 when effects are performed
queues.py           queues, with declarations.py        exchanges.py             exchanges, bindings, routes
consumers.py        basic.consume, get and cancel       open_sessions.py         clients' sessions
users.py            users and their permissions         access_control.py, passwords.py   what a user may do; hashes
policies.py         policies, applied to queues         vhosts.py, parameters.py, limits.py, marks.py
alarms.py           memory and disk                     clock_watch.py           steps of the wall clock
direct_reply.py     queues of direct replies
"""
