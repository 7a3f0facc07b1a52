"""Look at runs: a typed read model, the pages of `ludus view`, the JSON API and the static report.

    run directories ──> read model (`model`, and a module for each page) ──┬─> server ──> JSON API, pages in the browser
                                                                           ├─> report ──> one self-contained file
                                                                           └─> ludus show, runs, top

| module | what is in it |
|---|---|
| `model` | every value that a page shows, as frozen structs; the JSON API is these structs, encoded |
| `facts` | the index of a run: a row of numbers for each rollout, from its store or from a cache beside it |
| `run_folder` | the runs of a folder, found first and read in pieces |
| `overview` | a run: curves, failures, costs, what happens now |
| `rollout_pages` | tasks and rollouts, in pages |
| `transcript` | one rollout: turns, results in pieces, tokens, files |
| `versus` | runs beside each other |
| `skills` | versions of a skill, their differences, who wrote which line |
| `weights` | RL runs: steps, groups, rows |
| `env_pages` | environments, over all runs |
| `markup` | Markdown and code as inert HTML |
| `acting`, `forms` | change a run that runs; start one |
| `changes` | what has changed on disk while somebody looks |
| `routes`, `server` | the JSON API over HTTP |
| `report` | the pages of one run in one file |

Nothing here loads a run: every function reads a page by index, and what it returns is bounded.
"""
