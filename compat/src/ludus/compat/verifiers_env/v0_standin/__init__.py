"""The module `verifiers` as release 0.1.14 had it, for environments that were written for it.

Release 0.4 has removed those classes. Environments that import them run with what is here: prompts, turns, tools and
rewards are as there. `modules` puts it where they import it from, `verdicts` says which names there are.
"""
