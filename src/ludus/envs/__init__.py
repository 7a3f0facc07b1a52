"""The environments that come with Ludus, one file each. `BUILTIN` has their names and where they are."""

from collections.abc import Mapping
from types import MappingProxyType

BUILTIN: Mapping[str, str] = MappingProxyType(
    {
        "alfworld": "ludus.envs.alfworld:AlfWorld",
        "bfcl": "ludus.envs.bfcl:Bfcl",
        "bfcl-multi-turn": "ludus.envs.bfcl_conversations:BfclConversations",
        "docvqa": "ludus.envs.docvqa:DocVQA",
        "exercism": "ludus.envs.exercism:Exercism",
        "gsm8k": "ludus.envs.gsm8k:Gsm8k",
        "harbor": "ludus.envs.harbor:Harbor",
        "humaneval": "ludus.envs.humaneval:HumanEval",
        "judge": "ludus.envs.judged:Judged",
        "livemathematicianbench": "ludus.envs.livemath:LiveMathematicianBench",
        "math": "ludus.envs.math_problems:MathProblems",
        "mbpp": "ludus.envs.mbpp:Mbpp",
        "officeqa": "ludus.envs.officeqa:OfficeQA",
        "orders": "ludus.envs.orders:Orders",
        "parcels": "ludus.envs.parcels:Parcels",
        "past-work": "ludus.sleep.past_env:PastWork",
        "prompts": "ludus.trajectories.prompt_env:PromptEnv",
        "reasoning-gym": "ludus.envs.reasoning:ReasoningGym",
        "repair": "ludus.envs.repair:Repair",
        "searchqa": "ludus.envs.searchqa:SearchQA",
        "spreadsheetbench": "ludus.envs.spreadsheetbench:SpreadsheetBench",
        "swe-smith-oracle": "ludus.envs.swe_smith:SweSmithOracle",
        "terminal-test": "ludus.envs.terminal_test:TerminalTest",
        "textworld": "ludus.envs.textworld:TextWorldGames",
        "triggers": "ludus.envs.triggers:TriggerEnv",
    }
)
