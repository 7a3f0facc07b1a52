"""Counting the stock of a small shop, one fresh folder of delivery notes per rollout: an AgentEnv environment.

The agent adds up the notes of one article and writes the sum to ./stock/total.txt, then says it. Afterwards the notes
are counted again in the slot: 1 if the file and the answer are right, 0.5 if only the file is, else 0. An agent that
called no tool gets 0.

    python -m atropos.envs.agent_stock_env process --env.use_wandb false --env.total_steps 3 --env.group_size 2
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, Item

from ..agent import AgentConfig, AgentResult
from ..tools import ToolCall
from .agent_env import AgentEnv, AgentEnvConfig

SHELF: List[Dict[str, Any]] = [
    {"article": "lamps", "notes": {"monday.csv": "lamps,4\nropes,9\n", "friday.csv": "lamps,3\n"}},
    {"article": "ropes", "notes": {"monday.csv": "lamps,4\nropes,9\n", "friday.csv": "ropes,12\n"}},
    {"article": "sails", "notes": {"may.csv": "sails,1\n", "june.csv": "sails,1\nlamps,2\n", "july.csv": "sails,5\n"}},
]


class StockEnvConfig(AgentEnvConfig):
    count_timeout_s: int = Field(default=20, description="Seconds for the recount.")
    tokenizer_name: str = Field(default="Qwen/Qwen2.5-7B-Instruct", description="The tokenizer of the rows.")


class StockEnv(AgentEnv[StockEnvConfig]):
    name = "agent_stock"
    env_config_cls = StockEnvConfig

    def __init__(
        self,
        config: StockEnvConfig,
        server_configs: List[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ):
        super().__init__(config, server_configs, slurm, testing)
        self._next = 0
        self._answers: List[float] = []

    @classmethod
    def config_init(cls) -> Tuple[StockEnvConfig, List[APIServerConfig]]:
        base_url = (os.getenv("ATROPOS_SERVER_BASE_URL") or "http://127.0.0.1:8080").rstrip("/")
        env_config = StockEnvConfig(
            group_size=2,
            total_steps=3,
            batch_size=2,
            use_wandb=False,
            include_messages=True,
            ensure_scores_are_not_same=False,
            enabled_toolsets=["terminal", "filesystem"],
            disabled_toolsets=[],
            sandbox_image=os.getenv("ATROPOS_SANDBOX_IMAGE") or "atropos-sandbox:local",
            purge_job_on_start=True,
            purge_job_on_shutdown=True,
        )
        server = APIServerConfig(
            model_name=os.getenv("ATROPOS_SERVER_MODEL") or "Qwen/Qwen2.5-7B-Instruct",
            base_url=f"{base_url}/v1",
            api_key="local",
            num_max_requests_at_once=4,
            num_requests_for_eval=4,
            timeout=120,
        )
        return env_config, [server]

    async def setup_agent_env(self) -> None:
        self._shelf = SHELF

    async def get_next_item(self) -> Item:
        item = self._shelf[self._next % len(self._shelf)]
        self._next += 1
        return item

    def build_task(self, item: Item) -> str:
        return (
            f"The folder ./stock has delivery notes: lines of article,number. How many {item['article']} came in all? "
            "Write the number to ./stock/total.txt, then answer with the number alone."
        )

    def build_agent_config(self, item: Item) -> AgentConfig:
        return AgentConfig(
            max_steps=min(6, int(self.config.agent_max_steps)),
            temperature=self.config.agent_temperature,
            max_tokens=self.config.agent_max_tokens,
            tool_delay_s=self.config.agent_tool_delay_s,
            system_prompt="You keep the books of a shop.",
        )

    async def setup_trajectory_workspace(self, item: Item, *, trajectory_id: str, exec_tool) -> Dict[str, Any]:
        for name, text in item["notes"].items():
            made = await exec_tool(ToolCall(name="write_file", arguments={"path": f"stock/{name}", "content": text}))
            if not made.success:
                raise RuntimeError(f"no note {name} for {trajectory_id}: {made.error}")
        return {"notes": sorted(item["notes"])}

    async def verify_and_score_trajectory(
        self,
        item: Item,
        final_response: str,
        *,
        trajectory_id: str,
        exec_tool,
        agent_result: Optional[AgentResult] = None,
        workspace_meta: Optional[Dict[str, Any]] = None,
    ) -> tuple[float, Dict[str, Any]]:
        if agent_result is None or agent_result.total_tool_calls == 0:
            return 0.0, {"error": "no tool was called"}
        lines = [line for name in workspace_meta["notes"] for line in item["notes"][name].split()]
        right = sum(int(line.split(",")[1]) for line in lines if line.startswith(item["article"]))
        command = {"command": "cat stock/total.txt", "timeout": self.config.count_timeout_s}
        res = await exec_tool(ToolCall(name="terminal", arguments=command))
        words = [{"role": "user", "content": res.to_xml()}]
        if not res.success or res.output.strip() != str(right):
            return 0.0, {"error": res.error, "verification_messages": words}
        score = 1.0 if final_response.strip() == str(right) else await self.score_trajectory(item, final_response)
        self._answers.append(score)
        return score, {"steps": agent_result.num_steps, "verification_messages": words}

    async def score_trajectory(self, item: Item, final_response: str) -> float:
        return 0.5

    async def evaluate(self, *args, **kwargs):
        rows = [(await self.collect_trajectory(item))[0] for item in SHELF]
        await self.evaluate_log({"eval/right": sum(row["scores"] == 1.0 for row in rows) / len(rows)})

    async def wandb_log(self, wandb_metrics: Optional[Dict] = None):
        wandb_metrics = dict(wandb_metrics or {})
        if self._answers:
            wandb_metrics["train/mean_score"] = sum(self._answers) / len(self._answers)
            self._answers = []
        await super().wandb_log(wandb_metrics)


if __name__ == "__main__":
    StockEnv.cli()
