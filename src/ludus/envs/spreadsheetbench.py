"""SpreadsheetBench: change a workbook as an instruction says (`ludus-train[spreadsheets]`).

Rows have `id`, `instruction`, `instruction_type`, `answer_position`, `answer_sheet` and `spreadsheet_path`, a folder
below `env.data` with the test cases: `*_input.xlsx` and `*_answer.xlsx`, `*_init.xlsx` and `*_golden.xlsx`, or
`initial.xlsx` and `golden.xlsx`. The agent finds the first input as `input.xlsx` and leaves a program, `solution.py`.
It is run on every test case, in a slot without a network: it reads the workbook that `INPUT_PATH` names and writes
`OUTPUT_PATH`. The answers are never in a slot. Soft is the share of test cases whose cells are right, hard is all.
"""

import base64
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from ludus.env import Env, EnvFacts
from ludus.envs import workbooks
from ludus.envs.dataset import DataRow, give_ids, load_rows, require_path
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.scoring_process import run_scorer

PACKAGES = "/opt/ludus-spreadsheets"
"""Where slots see openpyxl, read-only."""
RUN_SECONDS = 120.0
LARGEST = 50_000_000
ENDINGS = (("_input.xlsx", "_answer.xlsx"), ("_init.xlsx", "_golden.xlsx"))


class SheetRow(Struct, frozen=True):
    """A row."""

    id: str | int
    instruction: str
    spreadsheet_path: str
    answer_position: str
    answer_sheet: str = ""
    instruction_type: str = ""


class SpreadsheetBench(Env, frozen=True):
    """Programs that change workbooks as asked (SpreadsheetBench)."""

    name: ClassVar[str] = "spreadsheetbench"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path",
        licence="that of the data",
        runs="agent and its program in slots; answers are compared outside",
        scored="all test cases have the right cells; soft: the share",
        extra="spreadsheets",
        speed="0.3 s per task of three test cases",
    )
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")
    system: ClassVar[str] = (
        "Write a Python program /workspace/solution.py that changes a workbook as asked. It reads the workbook at the "
        "path in the environment variable INPUT_PATH and writes the result to the path in OUTPUT_PATH, with openpyxl. "
        "Write values, not formulas. input.xlsx is an example of its input; the program is also run on other workbooks "
        "of the same form."
    )

    path: str = ""
    """A file or folder with the tasks, such as the published `dataset.json`."""
    data: str = ""
    """The folder that `spreadsheet_path` is below; empty: the folder of the tasks."""

    def tasks(self, split: str) -> Iterator[Task]:
        if find_spec("openpyxl") is None:
            raise ConfigError("env.name: openpyxl is not installed: pip install 'ludus-train[spreadsheets]'")
        texts = ("instruction", "spreadsheet_path", "answer_position")
        rows = load_rows(require_path(self.path, self.name), SheetRow, split, texts=texts)
        for id, row in give_ids(rows, ["id"]):
            item = row.item
            try:
                workbooks.split_position(item.answer_position, item.answer_sheet or "Sheet1")
            except ValueError as error:
                raise row.refuse(f"answer_position: {error}") from None
            where = f"\n\nThe result is read from the cells {item.answer_position}."
            yield Task(
                id=id,
                prompt=item.instruction + where,
                split=split,
                kind=item.instruction_type,
                answer={
                    "cases": self._find_cases(row),
                    "position": item.answer_position,
                    "sheet": item.answer_sheet,
                },
            )

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        """The slot sees the packages that the program needs."""
        found = [(name, find_spec(name)) for name in ("openpyxl", "et_xmlfile")]
        folders = [(name, Path(spec.origin).parent) for name, spec in found if spec and spec.origin]
        caches = tuple((str(folder), f"{PACKAGES}/{name}") for name, folder in folders)
        own = (*default.env, ("PYTHONPATH", PACKAGES))
        return replace(default, caches=(*default.caches, *caches), env=own)

    async def setup(self, task: Task, box: Sandbox) -> None:
        await box.write("input.xlsx", _read(task.answer["cases"][0][0]))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        answer = rollout.task.answer
        cases: list[tuple[str, str]] = answer["cases"]
        problems = [await self._run_case(box, *case, answer["position"], answer["sheet"]) for case in cases]
        soft = sum(not problem for problem in problems) / len(problems)
        wrong = [f"case {number}: {problem}" for number, problem in enumerate(problems, 1) if problem]
        feedback = "; ".join(wrong[:3]) if wrong else "Every test case has the right cells."
        return Score(float(not wrong), not wrong, soft, feedback, {"hard": float(not wrong), "soft": soft})

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        """Write a program that knows the answers by the content of the inputs."""
        assert box is not None
        known = {
            base64.b64encode(_read(source)).decode(): base64.b64encode(_read(gold)).decode()
            for source, gold in task.answer["cases"]
        }
        program = (
            "import base64, json\nfrom os import environ\n"
            f"known = json.loads({json.dumps(json.dumps(known))})\n"
            "source = base64.b64encode(open(environ['INPUT_PATH'], 'rb').read()).decode()\n"
            "open(environ['OUTPUT_PATH'], 'wb').write(base64.b64decode(known[source]))\n"
        )
        await box.write("solution.py", program.encode())
        return "Done."

    async def _run_case(self, box: Sandbox, source: str, gold: str, position: str, sheet: str) -> str:
        """What is wrong with the program's output for a test case; empty if nothing."""
        paths = {"INPUT_PATH": "/tmp/case/input.xlsx", "OUTPUT_PATH": "/tmp/case/output.xlsx"}
        resolved = {name: box.resolve(path) for name, path in paths.items()}
        await box.exec(f"rm -rf {box.resolve('/tmp/case')}")
        await box.write(paths["INPUT_PATH"], _read(source))
        workspace = box.resolve("/workspace")
        ran = await box.exec("python3 solution.py", timeout=RUN_SECONDS, env=resolved, cwd=workspace)
        if ran.exit_code != 0:
            return f"solution.py ended with exit code {ran.exit_code}: {ran.text.strip()[-300:]}"
        try:
            output = await box.read(paths["OUTPUT_PATH"], max_bytes=LARGEST)
        except (OSError, ValueError) as error:  # the agent's fault
            return f"there is no output that can be read: {error}"
        books = [base64.b64encode(data).decode() for data in (_read(gold), output)]
        found = await run_scorer(f"{workbooks.__name__}:compare_cells", *books, position, sheet, seconds=60.0)
        return f"wrong cells: {', '.join(found)}" if found else ""

    def _find_cases(self, row: DataRow[SheetRow]) -> list[list[str]]:
        """The test cases of a task: input and answer of each."""
        given = Path(self.path).expanduser()
        root = Path(self.data).expanduser() if self.data else (given if given.is_dir() else given.parent)
        folder = (root / row.item.spreadsheet_path).absolute()
        if not folder.is_dir():
            raise row.refuse(f"spreadsheet_path: there is no folder {folder} (see env.data)")
        cases: list[list[str]] = []
        for source_end, gold_end in ENDINGS:
            for source in sorted(folder.glob(f"*{source_end}")):
                gold = source.with_name(source.name.removesuffix(source_end) + gold_end)
                if not gold.is_file():
                    raise row.refuse(f"spreadsheet_path: {source.name} has no {gold.name}")
                cases.append([str(source), str(gold)])
        if not cases and (folder / "initial.xlsx").is_file() and (folder / "golden.xlsx").is_file():
            cases = [[str(folder / "initial.xlsx"), str(folder / "golden.xlsx")]]
        if not cases:
            raise row.refuse(f"spreadsheet_path: {folder} has no test case such as 1_input.xlsx and 1_answer.xlsx")
        return cases


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
