"""Erasing a subject: its keys are destroyed, then the history says so (SubjectErased in the metadata log)."""

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.errors import NotFound
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.schemas.metadata_events import SubjectErased
from rewindmq.schemas.values import Actor


class Erasures:
    def __init__(self, metadata: Metadata, subjects: Subjects) -> None:
        self._metadata = metadata
        self._subjects = subjects

    async def erase(self, actor: Actor, subject: str, reason: str) -> None:
        """Erase a subject. If the broker dies in the middle, erasing the subject again finishes it.

        NotFound: it has no keys. OSError: they can't be destroyed."""
        key_ids = await self._subjects.erase(subject)
        if not key_ids:
            raise NotFound(f"subject '{subject}' has no keys")
        await self._metadata.ask(actor, SubjectErased(subject, key_ids, reason))
