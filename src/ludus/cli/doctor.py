"""`ludus doctor`: what works on this machine, and how to fix the rest."""

import asyncio
from pathlib import Path

from ludus import host_checks
from ludus.arguments import Arguments
from ludus.command import CONFIG, JSON, Command
from ludus.config import load
from ludus.encoding import to_json


def run(arguments: Arguments) -> int:
    config = load([Path(path) for path in arguments.config], arguments.flags)
    findings = asyncio.run(host_checks.check_host(config, Path.cwd()))
    print(to_json(findings).decode() if arguments.json else host_checks.format_findings(findings))
    return 0 if host_checks.is_healthy(findings) else 1


COMMAND = Command(
    run,
    "ludus doctor\n"
    "ludus doctor --model.base_url http://127.0.0.1:8000/v1 --model.name qwen    # does the server have the model?",
    (CONFIG, JSON),
    uses=frozenset({"model", "sandbox"}),
)
