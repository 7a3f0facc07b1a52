"""Repositories repaired until named tests pass: a Hermes environment with the hooks of the sandbox pool.

A copy of the repository is kept in /data/repo_cache of the sandbox, behind a lock, and a rollout gets a working tree of
one commit. The score is 1 if all tests pass. Rows that are too long are cut at the end, in `_build_scored_item`.

    python -m ludus.compat.hermes hermes_oracle_env.py process --env.tool_pool_mode modal
"""

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from dotenv import load_dotenv
from pydantic import Field

from atroposlib.envs.server_handling.server_manager import APIServerConfig
from atroposlib.type_definitions import Item

from atropos.backends import create_tool_backend
from atropos.slots.executor import ExecutionResult
from environments.agent_loop import AgentResult
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.patches import apply_patches
from environments.tool_context import ToolContext
from model_tools import handle_function_call
from toolset_distributions import sample_toolsets_from_distribution

apply_patches()
load_dotenv(Path(__file__).parent / ".env")
RUN_TESTS = (
    "import importlib, sys; sys.path[:0] = ['.', 'tests']; "
    "[getattr(importlib.import_module(id.partition('.py::')[0].split('/')[-1]), id.partition('::')[2])() "
    "for id in sys.argv[1:]]"
)


class OracleConfig(HermesAgentEnvConfig):
    dataset_name: str = Field(default="rows.jsonl")
    max_items: int = Field(default=0, description="0: all")
    repo_base_url: str = Field(default="http://127.0.0.1")
    install_timeout_s: float = Field(default=600.0)
    test_timeout_s: float = Field(default=600.0)


class OracleEnv(HermesAgentBaseEnv):
    name = "hermes-oracle"
    env_config_cls = OracleConfig

    def __init__(self, config, server_configs, slurm=False, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.calls: List[str] = [os.environ["TERMINAL_ENV"]]
        self.rows: List[Dict[str, Any]] = []
        self.at = 0

    @classmethod
    def config_init(cls) -> Tuple[OracleConfig, List[APIServerConfig]]:
        config = OracleConfig(
            tokenizer_name=os.getenv("ATROPOS_TOKENIZER_NAME") or "none",
            group_size=1,
            use_wandb=False,
            total_steps=1,
            max_token_length=8192,
            enabled_toolsets=["terminal", "file"],
            terminal_backend=os.getenv("TERMINAL_ENV", "local"),
            max_agent_turns=50,
            agent_temperature=0.7,
            system_prompt="You mend repositories in a terminal.",
            tool_call_parser="hermes",
            purge_job_on_start=True,
        )
        server = {"base_url": "http://127.0.0.1:8080/v1", "api_key": "local", "server_type": "openai"}
        return config, [APIServerConfig(model_name="m", **server)]

    # ---- the run --------------------------------------------------------------------------------------------------

    async def process_manager(self):
        self.calls.append("process_manager")
        try:
            return await super().process_manager()
        finally:
            Path("calls.json").write_text(json.dumps([*self.calls, "over"]))

    async def _start_sandbox_backend(self):
        await super()._start_sandbox_backend()
        self.calls.append(f"start {os.environ['TERMINAL_ENV']} {self._sandbox_backend is not None}")

    async def _stop_sandbox_backend(self):
        await super()._stop_sandbox_backend()
        self.calls.append(f"stop {self._sandbox_backend is not None}")

    async def setup(self):
        self.calls.append("setup")
        self.rows = [json.loads(line) for line in Path(self.config.dataset_name).read_text().splitlines()]
        self.rows = self.rows[: self.config.max_items or None]

    async def get_next_item(self) -> Item:
        self.at += 1
        return dict(self.rows[(self.at - 1) % len(self.rows)])

    def format_prompt(self, item: Item) -> str:
        return f"Mend ./{item['repo'].split('/')[-1]}: {item['problem_statement']}"

    # ---- rollouts -------------------------------------------------------------------------------------------------

    async def _collect_trajectory_local(self, item, task_id, tools, valid_names, messages):
        self.calls.append("local")
        return await super()._collect_trajectory_local(item, task_id, tools, valid_names, messages)

    async def _collect_trajectory_sandbox(self, item, task_id, tools, valid_names, messages):
        self.calls.append("sandbox")
        return await super()._collect_trajectory_sandbox(item, task_id, tools, valid_names, messages)

    async def _run_agent_loop(self, task_id, tools, valid_names, messages, tool_handler=None) -> AgentResult:
        self.calls.append("loop")
        return await super()._run_agent_loop(task_id, tools, valid_names, messages, tool_handler)

    async def setup_trajectory_workspace(self, item: Item, *, trajectory_id: str, exec_tool) -> Dict[str, Any]:
        repo, commit = item["repo"], item["base_commit"]
        folder, slug, cache = repo.split("/")[-1], repo.replace("/", "__"), "/data/repo_cache"
        bare, lock = f"{cache}/{slug}.git", f"{cache}/.locks/{slug}.lock"
        command = (
            f"set -e; rm -rf {folder}; mkdir -p {cache}/.locks; : > {lock}; flock -x {lock} sh -lc 'set -e; "
            f'if [ ! -d "{bare}" ]; then git init -q --bare "{bare}"; '
            f'git -C "{bare}" remote add origin "{self.config.repo_base_url}/{repo}.git"; fi; '
            f'git -C "{bare}" fetch -q --depth 1 origin "{commit}" || git -C "{bare}" fetch -q --prune origin; '
            f'git --git-dir="{bare}" worktree add --detach "{folder}" "{commit}"\''
        )
        done: ExecutionResult = await exec_tool("bash", {"command": command}, timeout=self.config.install_timeout_s)
        if not done.success:
            raise RuntimeError(f"no working tree of {repo}: {done.error}\n{done.output}")
        return {"repo_dir": folder}

    async def verify_and_score_trajectory(
        self, item: Item, result: AgentResult, *, trajectory_id: str, exec_tool, workspace_meta: Optional[Dict] = None
    ) -> Tuple[float, Dict[str, Any]]:
        folder = (workspace_meta or {})["repo_dir"]
        if not any(message.get("tool_calls") for message in result.messages):
            return 0.0, {"error": "no tool calls"}
        venv = f"cd {folder} && python -m venv --without-pip .venv && . .venv/bin/activate && python -V"
        if not (await exec_tool("bash", {"command": venv}, timeout=self.config.install_timeout_s)).success:
            return 0.0, {"phase": "install"}
        tests = " ".join(sorted({*item["PASS_TO_PASS"], *item["FAIL_TO_PASS"]}))
        command = f'cd {folder} && . .venv/bin/activate && python -c "{RUN_TESTS}" {tests}'
        done = await exec_tool("bash", {"command": command}, timeout=self.config.test_timeout_s)
        if self._use_sandbox_backend():
            backend = create_tool_backend(self.config)
            slot = await backend.acquire(trajectory_id)
            (listed,) = await backend.execute_batch([(slot, "bash", {"command": f"ls {folder}"})], timeout_s=60)
            assert "tests" in listed.output and listed.metadata["returncode"] == 0
        return float(done.success), {"output": done.output}

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        raise AssertionError("verify_and_score_trajectory judges")

    def _build_scored_item(self, item, result, reward):
        row, backlog = super()._build_scored_item(item, result, reward)
        self.calls.append(f"row {reward} {backlog}")
        most = self.max_token_len if self.max_token_len > 0 else self.config.max_token_length
        if row is not None and len(row["tokens"]) >= most:
            row["tokens"], row["masks"] = row["tokens"][: most - 8], row["masks"][: most - 8]
        return row, backlog

    async def evaluate(self, *args, **kwargs):
        import asyncio

        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(
            None, lambda: handle_function_call("terminal", {"command": "echo hi; exit 3"}, task_id="t")
        )
        done = json.loads(said)
        drawn = sample_toolsets_from_distribution("terminal_only")
        assert drawn == ["terminal", "file"] and self._sandbox_backend is None
        await self.evaluate_log({"eval/code": done["exit_code"], "eval/said": done["output"]})


if __name__ == "__main__":
    OracleEnv.cli()
