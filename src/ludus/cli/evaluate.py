"""`ludus evaluate`: run a batch and write the numbers of a model on an environment."""

from ludus.batch import evaluate
from ludus.cli.batch_run import run_command
from ludus.cli.command import FILE_TAKES, RUN_SETTINGS, Command, RunArguments
from ludus.cli.file_envs import is_file_run, run_file


def run(arguments: RunArguments) -> int:
    if is_file_run(arguments):
        return run_file(arguments)
    return run_command(arguments, evaluate)


COMMAND = Command(
    run,
    "ludus evaluate gsm8k --env.split test --env.group_size 4 --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY",
    FILE_TAKES,
    RunArguments,
    RUN_SETTINGS,
)
