"""The running broker, its log, and the command line.

process.py       the composition root: puts all of it together, and runs until a signal
amqp/            the AMQP protocol             http/         the management API, metrics, the web page
cli/             the command line              definitions/  RabbitMQ's definitions, out and in
broker/          queues, exchanges, users, permissions and policies: what clients may ask for
routing/         from an exchange to queues    rewind/       the past, read by clients; restoring
placement/       queues that move to another partition        upgrades/  the operator's word that ends an upgrade
partition/       one partition live: append, fold, effects    host/      connections admitted, memory, the loop's time
embedded/        a broker with a log on its own disk        cluster/   a node of many on one Kafka
log/             both kinds of log                          keeping/   archive, tiers, trims, recovery, seals
erasure/         a person's messages, made unreadable       identity/  tokens of an identity provider
standby/         a second machine that follows              shovel/    a client of two brokers

config.py, reload.py   the configuration, and its settings that a running broker takes over
errors.py              errors that clients see        tls.py               TLS for AMQP clients
file_modes.py          who may read our files         service_manager.py   what systemd is told
logging_setup.py       the broker's own log
"""
