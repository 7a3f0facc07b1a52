"""`ludus view`: runs in a browser, live and local."""

import asyncio
import webbrowser
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, Command
from ludus.command.terminal import print_notice
from ludus.config.secrets import find_view_folder, read_secret
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.run import drain_on_interrupt
from ludus.view.acting import StartedCommands
from ludus.view.forms import FormBook
from ludus.view.routes import ViewState
from ludus.view.run_folder import RunFolder
from ludus.view.server import PageAccess, ViewServer

PORT = 8600


class ViewArguments(Arguments):
    runs: list[str]
    host: str
    port: int | None
    token_var: str
    read_only: bool
    browser: bool


def run(arguments: ViewArguments) -> int:
    roots = [Path(each) for each in arguments.runs or ["runs"]]
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"there is no folder {root}: name a run, or a folder of runs, as in: ludus view DIR")
    token = read_secret(arguments.token_var, "token-var")
    options = PageAccess(host=arguments.host, port=PORT if arguments.port is None else arguments.port)
    if not options.is_loopback and not token:
        raise ConfigError(
            f"--host {arguments.host} can be reached from other machines: name the variable with a token, as in: "
            "--token-var VIEW_TOKEN; or stay on 127.0.0.1 and use: ssh -L 8600:localhost:8600 HOST"
        )
    options = PageAccess(options.host, options.port, token or options.token, arguments.read_only)
    if arguments.port is None and options.is_loopback:
        options = _find_port(options)
    return asyncio.run(_serve(roots, options, browser=arguments.browser, as_json=arguments.json))


def _find_port(options: PageAccess) -> PageAccess:
    """The usual port, or a free one if another view has it."""
    import socket

    try:
        socket.create_server((options.host, options.port), family=_find_family(options.host)).close()
    except OSError:
        return PageAccess(options.host, 0, options.token, options.read_only)
    return options


def _find_family(host: str) -> int:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _serve(roots: list[Path], options: PageAccess, *, browser: bool, as_json: bool) -> int:
    cache = find_view_folder()
    with RunFolder(roots, cache) as folder:
        state = ViewState(folder, FormBook(roots[0]), StartedCommands(cache / "logs", Path.cwd()))
        async with ViewServer(state, options) as server:
            if as_json:
                print(to_json({"url": server.url, "address": server.address}).decode(), flush=True)
            else:
                mode = " (read-only)" if options.read_only else ""
                print_notice(f"{', '.join(map(str, roots))}{mode}: {server.address}\nCtrl-C stops it; runs go on.")
            if browser:
                asyncio.get_running_loop().run_in_executor(None, webbrowser.open, server.address)
            control = RunControl()
            with drain_on_interrupt(control, lambda _: None):
                await control.wait_for_stop()
    return 0


COMMAND = Command(
    run,
    "ludus view                          # the runs in ./runs, in the browser\n"
    "ludus view runs/first               # one run\n"
    "ludus view /data/runs --read-only --no-browser --port 8700\n"
    "ssh -L 8600:localhost:8600 HOST     # then open the address that ludus view printed on HOST\n"
    "ludus view --host 0.0.0.0 --token-var VIEW_TOKEN",
    (
        make_argument(
            "runs", metavar="RUNS", nargs="*", default=[], help="runs, or folders of runs; default: the folder runs"
        ),
        make_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)"),
        make_argument(
            "--port", type=int, default=None, help=f"the port (default {PORT}, or a free one if it is in use)"
        ),
        make_argument(
            "--token-var",
            metavar="VARIABLE",
            default="",
            help="the environment variable with the token; needed on any address but loopback",
        ),
        make_argument("--read-only", action="store_true", help="refuse every action"),
        make_argument("--no-browser", dest="browser", action="store_false", default=True, help="do not open a browser"),
        JSON,
    ),
    ViewArguments,
)
