"""Plan a run before its machines are rented: how fast it is on N nodes, what limits it, and what it costs.

    calibration (a short run) ──> RunProfile ──> simulation for each N ──> Forecast ──> table, JSON, plot

`simulation` is a discrete-event simulation of a cluster; it knows nothing of Ludus but phases. `run_profile` reads what
it needs from the records of a run. `forecast` puts both together. `check` compares a forecast with a finished run.
"""
