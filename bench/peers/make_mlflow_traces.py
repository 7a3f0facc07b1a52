"""Write traces of an agent into a database of MLflow, with its own package. For `bench/view.py`.

    $ python make_mlflow_traces.py FOLDER TRACES SECONDS      prints how many traces were written in the seconds

A trace has the spans that Ludus's tracker `otel` sends for a rollout: the agent, two replies and a tool call.
"""

import os
import sys
import time
from pathlib import Path

os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"

import mlflow


def write_trace(number: int) -> None:
    task = f"task-{number // 8:06d}"
    with mlflow.start_span(name=task, span_type="AGENT") as root:
        root.set_inputs({"prompt": f"Find the value of item {number // 8}."})
        with mlflow.start_span(name="chat bench-model", span_type="CHAT_MODEL") as span:
            span.set_outputs({"text": "I look it up."})
        with mlflow.start_span(name="execute_tool terminal", span_type="TOOL") as span:
            span.set_outputs({"text": f"{number}: item-{number // 8},0.5"})
        with mlflow.start_span(name="chat bench-model", span_type="CHAT_MODEL") as span:
            span.set_outputs({"text": f"The value is {number % 1000}."})
        root.set_outputs({"answer": number % 1000})


def main() -> None:
    folder, wanted, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("lookup", artifact_location=f"file://{folder}/artifacts")
    mlflow.set_experiment("lookup")
    began, count = time.monotonic(), 0
    while count < wanted and time.monotonic() - began < seconds:
        write_trace(count)
        count += 1
    print(count)


if __name__ == "__main__":
    main()
