"""An environment as users of verifiers 0.1 write one: the longest reply of a group gets the point."""

import verifiers as vf


def longest(completions, answers) -> list[float]:
    lengths = [len(completion[-1]["content"]) for completion in completions]
    return [float(length == max(lengths)) for length in lengths]


def says_hello(completion) -> float:
    return float("hello" in completion[-1]["content"])


def load_environment():
    rows = [{"question": "Say much.", "answer": ""}]
    try:
        from datasets import Dataset

        data = Dataset.from_list(rows)
    except ImportError:
        data = rows
    return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[longest, says_hello], weights=[1.0, 0.5]))
