"""A user's folder for tests of commands: environments, scripted models, a small tokenizer and an engine to serve it."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.build import make_rollout, make_turn

from ludus.types import (
    Call,
    Failure,
    Message,
    Provenance,
    Rollout,
    StopReason,
    Task,
    ToolResult,
    Usage,
)

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]
"""The command in a separate process."""

Ludus = Callable[..., Any]
"""The fixture `ludus`: runs a command; returns its exit code, stdout and stderr."""


def is_killed(do: Callable[[], object]) -> bool:
    """Run in a copy of this process; whether it was killed rather than finished."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            do()
            status = 0
        finally:
            os._exit(status)
    _, how = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(how) or os.WEXITSTATUS(how) == 0, "the child failed by itself"
    return os.WIFSIGNALED(how) and os.WTERMSIG(how) == signal.SIGKILL


# ---- sums: a text environment -------------------------------------------------------------------------------------

SUMS = """
from collections.abc import Iterator
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Rollout, Score, Task

class Sums(Env, frozen=True):
    \"\"\"Add two numbers.\"\"\"
    name: ClassVar[str] = "sums"
    sandbox: ClassVar[SandboxSpec | None] = None
    size: int = 4

    def tasks(self, split: str) -> Iterator[Task]:
        for n in range(self.size):
            yield Task(id=f"sum-{n}", prompt=f"{n}+{n}", split=split, answer=str(2 * n))

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.answer == rollout.task.answer))

    async def solve(self, task: Task, box: object) -> str:
        return task.answer
"""

SUMS_MODELS = """
import asyncio
from pathlib import Path
from ludus.errors import ModelError
from ludus.models.scripted import call, say

def note(text):
    with Path("calls.txt").open("a") as file:
        file.write(text + "\\n")

def right(messages, tools, sampling):
    note(messages[-1].content)
    return str(sum(map(int, messages[-1].content.split("+"))))

def broken(messages, tools, sampling):
    raise ModelError("the server is on fire", retryable=False)

def half_broken(messages, tools, sampling):
    if messages[-1].content in ("0+0", "1+1"):
        raise ModelError("the server is on fire", retryable=False)
    return right(messages, tools, sampling)

async def slow(messages, tools, sampling):
    '''The first two answer at once; the others wait until they may.'''
    if messages[-1].content in ("0+0", "1+1"):
        return right(messages, tools, sampling)
    note("waiting")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return right(messages, tools, sampling)

def doubling(messages, tools, sampling):
    if messages[-1].role == "tool":
        return messages[-1].content
    return call("double", number=int(messages[-1].content.split("+")[0]))

def write(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    prompt = messages[-1].content
    path = prompt.split("called ")[1].split(" that")[0]
    return call("write_file", path=path, content=prompt.split('"')[1])
"""


def write_sums(folder: Path) -> None:
    """The environment `sums.py`, and scripted models for it in `models.py`."""
    (folder / "sums.py").write_text(SUMS)
    (folder / "models.py").write_text(SUMS_MODELS)


def script_flags(function: str = "right") -> list[str]:
    """The flags for a scripted model of `models.py`."""
    return ["--model.type", "scripted", "--model.script", f"models.py:{function}"]


def read_calls(folder: Path) -> list[str]:
    """Read the requests to the scripted models."""
    path = folder / "calls.txt"
    return path.read_text().split() if path.exists() else []


# ---- rules: an environment to train on ----------------------------------------------------------------------------

RULES = '''
"""A task needs a rule, which its answer names. The agent passes when its skill has that rule."""

from typing import ClassVar

from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.types import Score, Task


class Rules(Env, frozen=True):
    """Obey rules."""

    name: ClassVar[str] = "rules"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "You obey rules."
    size: int = 18

    def tasks(self, split):
        for n in range(self.size):
            yield Task(id=f"{split}-{n}", prompt=f"{split} question {n}", split=split, answer=f"RULE-{n % 3}")

    async def verify(self, rollout, box):
        right = rollout.answer == rollout.task.answer
        return Score(float(right), right, float(right), "right" if right else f"rule missing: {rollout.task.answer}")
'''

RULES_MODELS = '''
import asyncio
import io
import json
import os
import re
import signal
from pathlib import Path

from ludus.errors import ModelError


def count():
    """Notes a call; ends the process, as a power cut would, at the call that `kill` names."""
    calls = Path("calls")
    number = len(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text("." * number)
    if Path("kill").exists() and number == int(Path("kill").read_text()):
        os.kill(os.getpid(), signal.SIGKILL)


def agent(messages, tools, sampling):
    count()
    wanted = f"RULE-{int(messages[-1].content.split()[-1]) % 3}"
    return wanted if wanted in messages[0].content and "verse" not in messages[0].content else "no idea"


async def patient(messages, tools, sampling):
    """Waits for the file `go` once it has a rule."""
    while "RULE" in messages[0].content and not Path("go").exists():
        Path("waiting").touch()
        await asyncio.sleep(0.02)
    return agent(messages, tools, sampling)


def broken(messages, tools, sampling):
    raise ModelError("the server is on fire", retryable=False)


def optimizer(messages, tools, sampling):
    count()
    stage, asked = sampling.stage, messages[1].content
    if stage == "analyst_failure":
        rules = list(dict.fromkeys(re.findall(r"rule missing: (RULE-\\\\d)", asked)))
        items = [{"op": "append", "content": f"Obey {rule}."} for rule in rules[:1]]
        items.append({"op": "replace", "target": "nowhere", "content": "<b>x</b>"})
        return json.dumps({"items": items, "reasoning": "a rule is missing"})
    if stage == "analyst_success":
        return json.dumps({"items": [{"op": "append", "content": "Answer in verse."}]})
    if stage.startswith("merge"):
        texts = re.split(r"^\\\\[\\\\d+\\\\] from .*\\\\n", asked.split("# Proposals", 1)[1], flags=re.M)[1:]
        items = [dict(re.findall(r"^(op|target|content): (.*)", text, re.M)) for text in texts]
        return json.dumps({"items": [{"item": item, "made_of": [n]} for n, item in enumerate(items, 1)]})
    if stage == "rank":
        return json.dumps({"selected": [1, 2, 3]})
    if stage == "slow":
        return json.dumps({"guidance": "Keep to the rules."})
    return json.dumps({"memory": "Adding rules helps."})


def write(messages, tools, sampling):
    from ludus.models.scripted import call

    if messages[-1].role == "tool":
        return "Done."
    path, content = re.search(r\'called (\\\\S+) that contains "(.*)"\', messages[-1].content).groups()
    return call("write_file", path=path, content=content) if "Obey" in messages[0].content else "Done."


def sums(messages, tools, sampling):
    """Answers in the right form only if it is shown an example."""
    return "#### 7" if any(m.role == "assistant" for m in messages) else "seven"
'''.replace("\\\\", "\\")

RULES_CONFIG = """
env: {name: rules.py}
model: {type: scripted, script: "models.py:agent", name: agent}
optimizer: {type: scripted, script: "models.py:optimizer", name: optimizer}
data: {ratio: "1:1:1"}
train:
  {recipe: reflact, epochs: 2, batch_size: 3, minibatch_size: 2, edit_budget: 2, min_edit_budget: 1, slow: {samples: 2}}
run: {concurrency: 1}
"""

LINES_CONFIG = RULES_CONFIG.partition("train:")[0] + "train: {recipe: ledger, epochs: 2}\nrun: {concurrency: 1}\n"


def write_rules(folder: Path) -> None:
    """The environment `rules.py`, an agent and an optimizer in `models.py`, and the settings to train with: `reflact`
    in `config.yaml`, `ledger` in `lines.yaml`."""
    (folder / "rules.py").write_text(RULES)
    (folder / "models.py").write_text(RULES_MODELS)
    (folder / "config.yaml").write_text(RULES_CONFIG)
    (folder / "lines.yaml").write_text(LINES_CONFIG)


def train_words(*words: str) -> list[str]:
    return ["train", "--config", "config.yaml", *words]


def read_results(out: str) -> dict[str, Any]:
    """Read the files that are equal in equal runs."""
    found: dict[str, Any] = {
        name: Path(out, name).read_bytes() for name in ("steps.jsonl", "best/SKILL.md", "final/SKILL.md")
    }
    summary = json.loads(Path(out, "summary.json").read_bytes())
    del summary["seconds"]
    return {**found, "summary": summary}


# ---- doubles: an environment with a tool, and a model that answers with exact tokens ------------------------------

DOUBLES = '''
from collections.abc import Iterator, Sequence
from typing import ClassVar
from ludus.env import Env
from ludus.sandbox import SandboxSpec
from ludus.tools import Tool
from ludus.types import Rollout, Score, Task, ToolSpec

async def double(arguments):
    return str(2 * arguments["number"])

SPEC = ToolSpec("double", "Doubles a number.", {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]})

class Doubles(Env, frozen=True):
    """Double a number."""
    name: ClassVar[str] = "doubles"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        for n in range(2):
            yield Task(id=f"task-{n}", prompt=f"Double {n}", split=split, answer=str(2 * n))

    def tools(self, task, box) -> Sequence[Tool]:
        return (Tool(SPEC, double),)

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.task.answer in rollout.answer))
'''

WORDS = "the quick brown fox <tool_call> </tool_call> name arguments double number answer user assistant system"


def write_doubles(folder: Path) -> None:
    (folder / "doubles.py").write_text(DOUBLES)


def make_tokenizer(folder: Path, words: str) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    from ludus.tokens.template import read_template

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator([words] * 3, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    special = ["<|im_start|>", "<|im_end|>"]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    rust.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": read_template("chatml")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reply(prompt: str) -> str:
    """The toy model: calls the tool, then answers with what it was told."""
    _, answered, after = prompt.rpartition("<tool_response>\n")
    if answered:
        return f"<think>\nHm, 世界\n</think>\n\nIt is {after.partition(chr(10))[0]}."
    number = prompt.rpartition("Double ")[2][0]
    return 'Grüße.\n<tool_call>\n{"name": "double", "arguments": {"number": ' + number + "}}\n</tool_call>"


@contextmanager
def serve_engine(folder: Path, **options: object) -> Generator[str]:
    """Serve a stand-in for the engines in a separate thread. Yields its URL."""
    from ludus.tokens.codec import Codec
    from ludus.tokens.engine_standin import StandIn
    from ludus.tokens.toy_engine import ToyEngine

    codec = Codec.open(folder, "hermes")
    started, addresses = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with StandIn(ToyEngine(codec.tokenizer, reply), codec=codec, **options) as server:
            addresses.append(server.url)
            started.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(60)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


def token_flags(url: str, tokenizer: Path | str, engine: str = "vllm") -> list[str]:
    given = {"base_url": f"{url}/v1", "name": "toy", "mode": "token", "engine": engine, "tokenizer": tokenizer}
    return [word for name, value in given.items() for word in (f"--model.{name}", str(value))]


# ---- the gateway, as a user runs it -------------------------------------------------------------------------------


@contextmanager
def serve_gateway(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Generator[Any]:
    """The command `ludus gateway --out run`, up, and its URL; ended with Ctrl-C."""
    with subprocess.Popen(
        [*LUDUS, "gateway", "--json", "--out", "run", "--gateway.port", "0", *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if line:
                yield process, json.loads(line)["url"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def post(url: str, body: Any, key: str = "", **headers: str) -> Any:
    """The JSON of the reply to a POST with an API key."""
    given = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {}), **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), given)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


# ---- printed output -----------------------------------------------------------------------------------------------

SHOWN_TASK = Task(id="squares", prompt="Write\nsquares", kind="files", answer="THE-ANSWER")


def make_shown_rollout(score: float | None = 1.0, *, text: str = "It is done.") -> Rollout:
    """Make a rollout that has everything that is printed."""
    call, bad = Call("c", "terminal", '{"command":"ls\\npwd","timeout":3}'), Call("d", "reed", "{oops")
    results = (ToolResult(call, "a.txt\nb.txt"), ToolResult(bad, '{"error": "Unknown tool"}', error="Unknown tool"))
    return make_rollout(
        score,
        make_turn("", *results, thinking="I wonder.", usage=Usage(9, 1)),
        make_turn(text, usage=Usage(20_000, 5, 0, 0.25), stop=StopReason.FINISHED),
        task=SHOWN_TASK,
        failure=Failure("sandbox", "slot 3 is gone") if score is None else None,
        feedback="All files are right.",
        provenance=Provenance(policy="abc", model="m", seed=7, toolsets=("terminal",)),
        opening=(Message("system", "Be brief."), Message("user", SHOWN_TASK.prompt)),
        seconds=75,
    )


def print_to_text(what, *arguments, **options) -> str:
    out = io.StringIO()
    what(*arguments, Console(file=out, width=140, highlight=False), **options)
    return out.getvalue()
