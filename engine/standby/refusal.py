"""A leader that refuses its follower."""

from rewindmq.engine.log.contract import LogError


class RefusedByLeader(LogError):
    """The leader refuses; `word` says why in a word."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word = word
