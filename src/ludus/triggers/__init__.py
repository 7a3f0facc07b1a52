"""Triggers: which skill an agent loads for which request, measured over a whole catalogue, and better descriptions.

    catalogue, queries ──> rollouts of `ludus.envs.triggers` ──> controls of the instrument ──> precision and recall
                                                            └──> training of descriptions ──> a paired claim

A description is text that competes with all others, so everything is measured with the whole catalogue, and a change of
one description is judged by what it does to all queries.
"""
