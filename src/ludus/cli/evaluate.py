"""`ludus evaluate`: run a batch and write the numbers of a model on an environment."""

from ludus.batch import evaluate
from ludus.cli.batch_run import run_command
from ludus.cli.command import RUN_SETTINGS, RUN_TAKES, Command, RunArguments


def run(arguments: RunArguments) -> int:
    return run_command(arguments, evaluate)


COMMAND = Command(
    run,
    "ludus evaluate gsm8k --env.split test --env.group_size 4 --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY",
    RUN_TAKES,
    RunArguments,
    RUN_SETTINGS,
)
