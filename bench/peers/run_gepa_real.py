"""GEPA 0.1.4 on an environment of `bench/real.py`: `gepa.optimize` with an adapter and a reflection model.

Reads one job as JSON from stdin. Rollouts are those of `ludus evaluate`, with the candidate as the skill, so the agent
and the verifier are the same as for the recipes of Ludus. The reflection model is asked over HTTP. GEPA keeps its state
in the run directory and goes on from there; rollouts that are there are not run again.
"""

import hashlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import gepa
from gepa.core.adapter import EvaluationBatch


class Adapter:
    """Runs the agent, and shows what it did and what was right to the reflection model."""

    propose_new_texts = None

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.folder = Path(job["out"])
        self.calls = 0

    def evaluate(self, batch: list[dict[str, str]], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        self.calls += 1
        rows = self._run(batch, candidate["skill"])
        scores = [rows[item["id"]]["score"]["value"] for item in batch]
        traces = [make_record(rows[item["id"]]) for item in batch]
        return EvaluationBatch(outputs=traces, scores=scores, trajectories=traces if capture_traces else None)

    def _run(self, batch: list[dict[str, str]], text: str) -> dict[str, Any]:
        """The rollouts of a batch by task. The same batch with the same text is run once."""
        ids = [item["id"] for item in batch]
        key = hashlib.sha256(json.dumps([text, ids, self.calls]).encode()).hexdigest()[:16]
        out, skill = self.folder / "batches" / key, self.folder / "skills" / f"{key}.md"
        skill.parent.mkdir(parents=True, exist_ok=True)
        skill.write_text(text)
        command = [*self.job["evaluate"], "--env.split", batch[0]["split"], "--env.ids", ",".join(ids)]
        command += ["--agent.skill", str(skill), "--run.seed", str(self.job["seed"] + self.calls), "--out", str(out)]
        command += ["--resume"] if out.exists() else []
        done = subprocess.run(command, capture_output=True, text=True)
        rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()] if out.exists() else []
        found = {row["task"]["id"]: row for row in rows if row["score"]}
        if done.returncode or set(ids) - found.keys():
            raise SystemExit(f"ludus evaluate failed: {done.stderr[-2000:]}")
        return found

    def make_reflective_dataset(self, candidate: dict[str, str], batch: Any, components: list[str]) -> Any:
        return {"skill": batch.trajectories}


def make_record(row: dict[str, Any]) -> dict[str, str]:
    said = [
        " ".join([message["content"], *(call["function"]["arguments"] for call in message.get("tool_calls", []))])
        for message in row["messages"]
        if message["role"] in ("assistant", "tool")
    ]
    return {"Inputs": row["task"]["prompt"], "Generated Outputs": "\n".join(said), "Feedback": row["score"]["feedback"]}


def ask(job: dict[str, Any], prompt: Any) -> str:
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
    body = {"model": "any", "messages": messages, "temperature": 0.7, "max_tokens": job["reply_tokens"]}
    request = urllib.request.Request(
        f"{job['url']}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=1800) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def main() -> None:
    job = json.load(sys.stdin)
    folder = Path(job["out"])
    result = gepa.optimize(
        seed_candidate={"skill": job["initial"]},
        trainset=job["train"],
        valset=job["selection"],
        adapter=Adapter(job),
        reflection_lm=lambda prompt: ask(job, prompt),
        max_metric_calls=job["rollouts"],
        run_dir=str(folder / "gepa"),
        seed=job["seed"],
    )
    (folder / "best.md").write_text(result.best_candidate["skill"])
    print(json.dumps({"metric_calls": result.total_metric_calls, "candidates": len(result.candidates)}))


if __name__ == "__main__":
    main()
