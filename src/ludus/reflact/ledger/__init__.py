"""The per-line ledger: evidence for and against each line of a skill, from every training rollout.

Every rollout runs a text of its own: the initial skill with some of the lines that were proposed. Of a failed rollout
an analyst names the situations that spoiled it and the lines that it suspects. So each rollout is evidence for and
against each line. Read `ledger_loop.py` first: one function shows a step in order. All other modules are pure.
"""
