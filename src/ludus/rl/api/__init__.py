"""The trajectory server: scored groups from environments, batches for trainers, on the wire of Atropos.

    POST /scored_data ──> posted_groups (check) ──> group_log (disk) ──> backlog (memory: where each group is)
    GET  /batch       <── group_log (bytes)     <── backlog.choose

| module | what is in it |
|---|---|
| `ludus.rl.server_settings` | the `api` section |
| `posted_groups` | what a posted group must be; checks it without decoding its numbers |
| `check_pool` | processes that do that beside the server |
| `large_bodies` | a process for each body that is too large for these |
| `batching` | which groups make the next batch: pure functions over the backlog |
| `state` | the state of a run as a function of its events |
| `log_records` | the records of the log as bytes; reads past damage |
| `group_log` | events and groups on disk: append, recover, remove |
| `trajectory_run` | state and log together: every change is on disk before it is answered |
| `service` | the HTTP routes |
"""
