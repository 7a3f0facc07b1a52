"""`ludus audit`: which tasks of an environment can be passed without doing them.

arms (reference, nothing, attacks, guesses) × tasks ──> rollouts ──> findings ──> table, audit.json, audit.html
"""
