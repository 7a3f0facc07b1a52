"""What each skill of a library is worth, and what should become of it.

    the whole library on all tasks ──> which skills were loaded, where
    the library without one of them, on the rollouts that loaded it ──> worth, paired by task and seed
    texts alike, or one loaded in place of another ──> the library without all of them ──> duplicates
    ──> proposals: retire, merge, split, trim ──> the proposed library, measured ──> a person decides

A skill that was never loaded is told apart from one that does not help. Where the rollouts are too few, the verdict is
"not enough evidence". No file of the user's is changed before a person has accepted a proposal (`ludus curate`).
"""
