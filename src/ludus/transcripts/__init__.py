"""Past sessions: transcripts of agents, from every format, masked before a model sees them.

    read_sessions(paths) ──> PastSession ──> mask_session ──> PastSession, and what was masked

A transcript is text that others wrote. Nothing in it is run or followed: it is read within limits, and what is left out
is counted.
"""
