"""Prompts in, trajectories out: what `ludus batch` and `ludus compress` are made of.

    prompts.jsonl ──> PromptFile ──> tasks of PromptEnv ──> engine ──> store ──> filters ──> shards, statistics
                                                                                              └──> compression

The store of the run is the truth. Shards and statistics are derived from it, in the order of the file, and can be made
again at any time. Nothing here holds all rows or all rollouts: a file of prompts is read line by line, and its index
has eight bytes for each row.
"""
