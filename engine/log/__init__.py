"""The log: partitions of records, on the broker's own disk or in Kafka. Read contract.py first.

contract.py          the contract of every log       shared_contract.py   the contract of a log with several writers
embedded/            files and group commit          kafka/               topics in Kafka
simulated/           both logs in memory             chain.py             the hash chain
settings_file.py     settings of Kafka's clients     secret_file.py       a file with one secret
whole_file.py        a small file, all or nothing
"""
