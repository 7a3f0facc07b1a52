"""The training of weights: rows of exact tokens, and everything that learns from them or takes them elsewhere.

`rows` makes rows of rollouts that were run with exact tokens, `row_checks` checks rows before a trainer uses them, and
`group_filters` and `advantages` turn groups into what is learned from. `trainers` is the protocol of trainers:
`torch_trainer` is the built-in one, `tinker_trainer` trains elsewhere. `rl_loop` runs rollouts and updates in turn
(`ludus rl`). `worker` feeds a trajectory server (`ludus serve`), `api` is one (`ludus api`). `atropos_rows` and
`exporters` write rows for other systems.
"""
