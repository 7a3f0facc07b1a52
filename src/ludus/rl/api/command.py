"""`ludus api`: the trajectory server. Environments post scored groups, trainers take batches.

The command runs until Ctrl-C (or SIGTERM): requests that run are finished, and everything that was accepted is in the
log. Started again with the same `--data`, the server continues where it was.
"""

import asyncio
import os
import time
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, Command
from ludus.command.terminal import print_notice
from ludus.config import load
from ludus.config.secrets import read_secret
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.gateway.command import check_host, find_fastest_loop
from ludus.rl.api.check_pool import CheckPool
from ludus.rl.api.service import TrajectoryServer
from ludus.rl.api.trajectory_run import TrajectoryRun
from ludus.rl.server_settings import ApiSettings
from ludus.run import drain_on_interrupt


class ApiArguments(Arguments):
    host: str | None
    port: str | None
    data: str | None


def run(arguments: ApiArguments) -> int:
    named = {"api.host": arguments.host, "api.port": arguments.port, "api.data": arguments.data}
    flags = [*arguments.flags, *((path, value) for path, value in named.items() if value is not None)]
    settings = load([Path(path) for path in arguments.config], flags).api
    token = read_secret(settings.token_var, "api.token_var")
    check_host(settings.host, token, "api")
    with asyncio.Runner(loop_factory=find_fastest_loop()) as runner:
        return runner.run(_serve(settings, token, as_json=arguments.json))


async def _serve(settings: ApiSettings, token: str, *, as_json: bool) -> int:
    folder = Path(settings.data or f"runs/api-{time.strftime('%Y%m%d-%H%M%S')}")
    run = TrajectoryRun(folder, settings, time.monotonic(), print_notice)
    try:
        checkers = min(4, (os.cpu_count() or 1) - 1) if settings.checkers is None else settings.checkers
        async with (
            CheckPool(checkers, print_notice) as pool,
            TrajectoryServer(run, settings, pool=pool, token=token) as server,
        ):
            _announce(server.url, folder, run, settings, token=bool(token), as_json=as_json)
            control = RunControl()
            with drain_on_interrupt(control, print_notice):
                await control.wait_for_stop()
    finally:
        waiting, step = len(run.state.backlog), run.state.step
        run.close()
    print_notice(f"stopped at step {step}; {waiting:,} groups wait in {folder}. Continue: ludus api --data {folder}")
    return 0


def _announce(url: str, folder: Path, run: TrajectoryRun, settings: ApiSettings, *, token: bool, as_json: bool) -> None:
    if as_json:
        print(to_json({"url": url, "data": str(folder)}).decode(), flush=True)
        return
    state = run.state
    if state.registered or len(state.backlog):
        print_notice(f"continued from {folder}: step {state.step}, {len(state.backlog):,} groups wait")
    safe = "each is on disk" if settings.sync == "disk" else "a killed server loses none; a power failure may"
    print_notice(
        f"trajectory server at {url}, groups kept in {folder} ({safe}). It waits for a trainer and environments:\n"
        f"  trainer      POST {url}/register, then GET {url}/batch until it returns one\n"
        f"  environment  ludus serve ENV --serve.server {url}\n"
        f"               (an Atropos environment: --env.rollout_server_url {url})\n"
        f"  state        curl {url}/status    counters: curl {url}/metrics\n"
        + ("Every request needs the header Authorization: Bearer $TOKEN.\n" if token else "")
        + "Ctrl-C stops it: requests that run are finished."
    )
    if settings.max_staleness is not None:
        print_notice(
            f"api.max_staleness {settings.max_staleness}: older groups are dropped. Groups of slow tasks are old more "
            "often, so fast tasks are trained on more. To bound the age without it, limit what is under way: "
            "serve.max_batches_offpolicy. What is dropped is counted in /status (dropped_for_age) and /metrics."
        )


COMMAND = Command(
    run,
    "ludus api                                             # http://127.0.0.1:8000, data in runs/api-<time>\n"
    "ludus api --port 8100 --data runs/api                 # again with the same data: continues there\n"
    "ludus api --host 0.0.0.0 --api.token_var API_TOKEN    # other machines need the token in $API_TOKEN\n"
    "ludus api --api.sync disk                             # survive a power failure",
    (
        make_argument("--host", help="the address to listen on (default 127.0.0.1)"),
        make_argument("--port", help="the port to listen on (default 8000; 0: a free one)"),
        make_argument("--data", metavar="DIR", help="the directory of the log; default: runs/api-<time>"),
        CONFIG,
        JSON,
    ),
    ApiArguments,
    uses=frozenset({"api"}),
)
