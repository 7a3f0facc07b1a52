"""The agents that Ludus knows how to start.

`scripts/setup-agents` installs them into a folder of the host, which slots see below `/opt/agents`. docs/agents.md says
what was tried with each. Where possible they are set not to retry failed requests, because the model client behind the
gateway retries them.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ludus.errors import ConfigError, suggest
from ludus.harness import Harness

_INSTALLED = "/opt/agents"

MINI_SWE_AGENT = Harness(
    name="mini-swe-agent",
    command=(
        f"{_INSTALLED}/mini-swe-agent/bin/python -m minisweagent.run.mini --yolo --exit-immediately --cost-limit 0 "
        '-c mini.yaml -c model.model_kwargs.api_base={url} -m openai/{model} -o /tmp/mini.json -t "$(cat)"'
    ),
    env={
        "OPENAI_API_KEY": "{key}",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    mounts=(("mini-swe-agent", f"{_INSTALLED}/mini-swe-agent"),),
)

CODEX = Harness(
    name="codex",
    command=(
        f"{_INSTALLED}/codex/bin/codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "
        "--color never -c model_providers.ludus.base_url={url} -m {model} -"
    ),
    env={"LUDUS_KEY": "{key}"},
    files={
        "~/.codex/config.toml": """\
model_provider = "ludus"
check_for_update_on_startup = false
[model_providers.ludus]
name = "ludus"
env_key = "LUDUS_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
""",
    },
    skills="~/.agents/skills",
    mounts=(("codex", f"{_INSTALLED}/codex"),),
)

CLAUDE_CODE = Harness(
    name="claude-code",
    command=f"{_INSTALLED}/claude-code/bin/claude -p --dangerously-skip-permissions --model {{model}}",
    env={
        "ANTHROPIC_BASE_URL": "{anthropic_url}",
        "ANTHROPIC_API_KEY": "{key}",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    },
    skills="~/.claude/skills",
    mounts=(("claude-code", f"{_INSTALLED}/claude-code"),),
)

KNOWN: Mapping[str, Harness] = {harness.name: harness for harness in (MINI_SWE_AGENT, CODEX, CLAUDE_CODE)}


def find_installation(harness: Harness, folder: Path) -> Harness:
    """The harness with absolute mounts, of which relative ones are in `folder`, and with the installed version.

    Raises:
        ConfigError: a folder does not exist, or slots cannot see it.
    """
    mounts = tuple((str(folder / source), place) for source, place in harness.mounts)
    for source, _ in mounts:
        if not Path(source).is_dir():
            fix = f"run scripts/setup-agents {harness.name}" if harness.name in KNOWN else "install it, or correct it"
            raise ConfigError(f"agent.harness: {harness.name} is not installed: there is no folder {source}; {fix}")
        if closed := _find_closed(Path(source)):
            raise ConfigError(
                f"agent.harness: slots run as other users, who may not enter {closed}: "
                "install the agent elsewhere (LUDUS_AGENTS) or open the folder (chmod o+x)"
            )
    return msgspec.structs.replace(harness, mounts=mounts, version=_read_version(folder / harness.name))


def find_harness(name: str, others: Iterable[str] = ()) -> Harness:
    """The known harness of a name. `others`: names in the settings, which are suggested, too.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in KNOWN:
        raise ConfigError(
            f"agent.harness: '{name}' is unknown; {suggest(name, [*KNOWN, *others])} "
            f"(your own: --agent.harnesses.{name}.command 'PROGRAM …', or file.py:NAME)"
        )
    return KNOWN[name]


def _read_version(folder: Path) -> str:
    """The version that `scripts/setup-agents` has recorded."""
    noted = folder / ".version"
    return noted.read_text().strip() if noted.is_file() else ""


def _find_closed(path: Path) -> Path | None:
    """The first folder of the path that slots may not enter. Only if the driver is root: slots run as other users."""
    if os.geteuid() != 0:
        return None
    return next((part for part in (path, *path.parents) if not part.stat().st_mode & stat.S_IXOTH), None)
