"""The log: partitions of records, on a disk of the broker's own or in Kafka. Read contract.py first.

contract.py          what every log promises         shared_contract.py   what a log of several writers promises
embedded/            files and group commit          kafka/               topics in Kafka
simulated/           both logs in memory             chain.py             the hash chain
settings_file.py     settings of Kafka's clients     secret_file.py       a file with one secret
whole_file.py        a small file, all or nothing
"""
