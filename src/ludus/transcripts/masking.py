"""Secrets and personal data in a session are replaced by placeholders."""

from ludus.transcripts.past_session import Counts, PastSession


def mask_session(session: PastSession) -> tuple[PastSession, Counts]:
    """The session with placeholders such as `<EMAIL_1>` in every field, and how many values were replaced, by kind.

    The same value gets the same placeholder everywhere in the session. Masking twice changes nothing.
    """
    raise NotImplementedError
