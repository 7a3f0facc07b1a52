"""Files of Atropos and Hermes, and the agents that play them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests.cli_kit import WORDS, make_tokenizer

ENVIRONMENTS = Path(__file__).parent / "environments"

AGENTS = r'''
import re
from pathlib import Path
from ludus.errors import BudgetExhausted, ModelError
from ludus.models.scripted import call


def note():
    with Path("calls.txt").open("a") as file:
        file.write("x\n")


def sums(messages, tools, sampling):
    """Answers the questions of atropos_arithmetic_env.py."""
    note()
    a, b, c = map(int, re.search(r"\((\d+) \+ (\d+)\) \* (\d+)", messages[-1].content).groups())
    return f"So it is \\boxed{{{(a + b) * c}}}"


def half(messages, tools, sampling):
    """Right for even seeds only."""
    return sums(messages, tools, sampling) if sampling.seed % 2 else "no idea"


def empty(messages, tools, sampling):
    note()
    return ""


NOTES = {"shopping": {"shopping.txt": "bread\nmilk\npears"}, "draft": {"state.txt": "final", "topic.txt": "harbour"},
         "squares": {"squares.csv": "n,square\n1,1\n2,4\n3,9\n4,16"}, "ready": {"done.txt": "ready"}}


def notes(messages, tools, sampling):
    """Plays hermes_notes_env.py: writes the files of the task, one in each turn."""
    note()
    prompt = next(message.content for message in messages if message.role == "user")
    files = next(files for word, files in NOTES.items() if word in prompt)
    done = sum(message.role == "assistant" for message in messages)
    if done >= len(files):
        return "done"
    name, text = list(files.items())[done]
    return call("write_file", path=f"notes/{name}", content=text)


def messy(messages, tools, sampling):
    """The same, with a line too many in each file."""
    reply = notes(messages, tools, sampling)
    if isinstance(reply, str):
        return reply
    import json
    given = json.loads(reply.calls[0].arguments)
    return call("write_file", path=given["path"], content=given["content"] + "\nmore")


FIXES = {"slug.py": "def slug(title):\n    return '-'.join(title.lower().split())\n",
         "mean.py": "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else 0\n"}


def mend(messages, tools, sampling):
    """Plays hermes_repo_fix_env.py."""
    note()
    name = next(name for name in FIXES if name in messages[-1].content or name in messages[0].content)
    if messages[-1].role == "tool":
        return "mended"
    return call("terminal", command=f"cd repo && cat > {name} <<'END'\n{FIXES[name]}END")


def mend_half(messages, tools, sampling):
    reply = mend(messages, tools, sampling)
    return reply if isinstance(reply, str) else call("terminal", command=(
        "cd repo && sed -i 's/title.lower()/title.lower().strip()/' slug.py; sed -i 's,//,/,' mean.py; true"))


def ruin(messages, tools, sampling):
    reply = mend(messages, tools, sampling)
    return reply if isinstance(reply, str) else call("terminal", command="rm -rf repo")


def stock(messages, tools, sampling):
    """Plays agent_stock_env.py."""
    note()
    import json
    article = re.search(r"How many (\w+)", next(m.content for m in messages if m.role == "user"))[1]
    if messages[-1].role == "tool":
        return json.loads(messages[-1].content)["output"].strip()
    add = f"/^{article},/ {{ sum += $2 }} END {{ print sum }}"
    return call("terminal", command=f"awk -F, '{add}' stock/*.csv | tee stock/total.txt")


def stock_in_text(messages, tools, sampling):
    """The same, for a chat server that leaves calls in the text."""
    import json
    reply = stock(messages, tools, sampling)
    if isinstance(reply, str):
        return reply
    given = {"name": reply.calls[0].name, "arguments": json.loads(reply.calls[0].arguments)}
    return f"<tool_call>\n{json.dumps(given)}\n</tool_call>"


def stock_and_talk(messages, tools, sampling):
    reply = stock(messages, tools, sampling)
    return f"I think {reply}" if isinstance(reply, str) else reply


def stock_forever(messages, tools, sampling):
    """The right file, but no last reply."""
    import json
    reply = stock(messages, tools, sampling)
    return call("terminal", command="true") if isinstance(reply, str) else reply


def broken(messages, tools, sampling):
    note()
    raise ModelError("the server is on fire", retryable=False)
'''


def write_files(folder: Path, *names: str, **texts: str) -> None:
    """Copy environments, and write files of the test's own, agents and a tokenizer into a folder."""
    for name in names:
        shutil.copy(ENVIRONMENTS / name, folder / name)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "agents.py").write_text(AGENTS)
    make_tokenizer(folder, WORDS)


def flags(agent: str, *words: str) -> list[str]:
    """The flags of a run with a scripted agent."""
    given = ["--env.use_wandb", "False", "--env.tokenizer_name", ".", "--model.type", "scripted"]
    return [*given, "--model.script", f"agents.py:{agent}", *words]


def read_jsonl(path: str | Path) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def count_calls() -> int:
    path = Path("calls.txt")
    return len(path.read_text().split()) if path.exists() else 0


def look_up(prompt: str) -> str:
    """Plays atropos_tool_env.py: looks both bins up, then answers."""
    asked = re.search(r"bins (\w+) and (\w+)\?", prompt)
    if asked is None:  # the engine is tried with another prompt first
        return "?"
    found = re.findall(r"<result>\w+: (\d+)</result>", prompt)
    if len(found) < 2:
        return f"<lookup>{asked[len(found) + 1]}</lookup>"
    return f"<answer>{sum(map(int, found))}</answer>"
