"""`ludus report`: the pages of a run in one file, for a pull request or a paper."""

import json
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, RUN, Command
from ludus.errors import ConfigError
from ludus.run_info import REPORT
from ludus.view.report import LARGEST, write_report


class ReportArguments(Arguments):
    run: str
    out: str
    megabytes: float


def run(arguments: ReportArguments) -> int:
    path = Path(arguments.run)
    if arguments.megabytes <= 0:
        raise ConfigError(f"--megabytes {arguments.megabytes:g}: a number above 0")
    made = write_report(path, Path(arguments.out) if arguments.out else path / REPORT, int(arguments.megabytes * 1e6))
    facts = {"run": str(path), "report": str(made), "bytes": made.stat().st_size}
    print(json.dumps(facts) if arguments.json else made.resolve().as_uri())
    return 0


COMMAND = Command(
    run,
    "ludus report runs/first -o first.html          # one file without a network: open it, attach it\n"
    "ludus report runs/skill                        # runs/skill/report.html\n"
    "ludus report runs/large -o a.html --megabytes 100",
    (
        RUN,
        make_argument("-o", dest="out", metavar="FILE", default="", help=f"the file; default: {REPORT} in the run"),
        make_argument(
            "--megabytes",
            type=float,
            default=LARGEST / 1e6,
            help=f"how much of the run it holds, at most (default {LARGEST / 1e6:g}); it says what is left out",
        ),
        JSON,
    ),
    ReportArguments,
)
