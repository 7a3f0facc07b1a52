"""Write a log of Inspect with many samples, with its own package. For `bench/view.py`.

    $ python make_inspect_log.py FOLDER SAMPLES SECONDS       prints how many samples the log has

If so many do not fit into the seconds, there are fewer: the log is written at once, so the pace of a part decides. A
long log takes longer per sample than a short one, so less than half of what that pace promises is written.
"""

import sys
import time
from pathlib import Path

from inspect_ai.dataset import Sample  # noqa: F401  (the package is whole)
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalResults,
    EvalSample,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall


def make_sample(number: int) -> EvalSample:
    call = ToolCall(
        id=f"c{number}", function="terminal", arguments={"command": f"grep -n item-{number // 8} table.csv"}
    )
    messages = [
        ChatMessageUser(content=f"Find the value of item {number // 8}."),
        ChatMessageAssistant(content="I look it up.", tool_calls=[call]),
        ChatMessageTool(content=f"{number}: item-{number // 8},0.5", tool_call_id=f"c{number}", function="terminal"),
        ChatMessageAssistant(content=f"The value is {number % 1000}."),
    ]
    return EvalSample(
        id=f"task-{number // 8:06d}",
        epoch=number % 8 + 1,
        input=messages[0].content,
        target="1",
        messages=messages,
        output=ModelOutput.from_content("bench-model", f"The value is {number % 1000}."),
        scores={"match": Score(value="C" if number % 5 else "I")},
    )


def make_log(samples: list[EvalSample]) -> EvalLog:
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="lookup",
        dataset=EvalDataset(name="lookup", samples=len(samples)),
        model="bench-model",
        config=EvalConfig(epochs=8),
    )
    results = EvalResults(total_samples=len(samples), completed_samples=len(samples))
    return EvalLog(status="success", eval=spec, results=results, stats=EvalStats(), samples=samples)


def main() -> None:
    folder, wanted, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    part = min(500, wanted)
    began = time.monotonic()
    write_eval_log(make_log([make_sample(number) for number in range(part)]), str(folder / "trial.eval"))
    (folder / "trial.eval").unlink()
    count = min(wanted, max(part, int(0.4 * part * seconds / (time.monotonic() - began))))
    write_eval_log(make_log([make_sample(number) for number in range(count)]), str(folder / "lookup.eval"))
    print(count)


if __name__ == "__main__":
    main()
