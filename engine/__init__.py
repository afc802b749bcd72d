"""The running broker, its log, and the command line.

process.py       the composition root: puts all of it together, and runs until a signal
amqp/            the AMQP protocol             http/         the management API, metrics, the web page
cli/             the command line              definitions/  RabbitMQ's definitions, out and in
broker/          queues, exchanges, users, permissions and policies: what clients may ask for
routing/         from an exchange to queues    rewind/       the past, read by clients; restoring
partition/       one partition live: append, fold, effects    host/      connections admitted, memory, the loop's time
embedded/        a broker with a log on its own disk        cluster/   a node of many on one Kafka
log/             both kinds of log, and seals               erasure/   a person's messages, made unreadable
"""
