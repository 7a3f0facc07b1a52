"""Rollouts for weights: rows to train on, and what is wrong with them.

`sequences` makes rows of rollouts that were run with exact tokens; `check` looks at rows, ours or anybody's, before
they reach a trainer; `atropos` writes them as Atropos' JSON.
"""
