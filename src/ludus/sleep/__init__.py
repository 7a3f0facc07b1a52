"""Past work: a skill is trained on what its users asked for, and a person adopts the result, or not.

    transcripts ──> sessions that used the skill ──> tasks with checkers that hold ──> training ──> a staged patch
                                                                                                   └─> `ludus adopt`

Read `night.py` first: what a night keeps. `mining.py` makes tasks, `past_env.py` is the environment of them,
`staging.py` writes what is proposed, and `adoption.py` puts it in place of the live skill, or takes it back.
"""
