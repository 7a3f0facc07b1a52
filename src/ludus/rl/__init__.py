"""Rollouts for the training of weights: rows of exact tokens, and checks of rows.

`rows` makes rows of rollouts that were run with exact tokens. `row_checks` checks rows, from Ludus or from elsewhere,
before they reach a trainer. `atropos_rows` writes rows as Atropos' JSON.
"""
