"""Verifiers: small functions that compare the agent's result with the expected one and return a `Score`.

`feedback` says why, in words that help the author of an agent, or an analyst, to improve it.
"""
