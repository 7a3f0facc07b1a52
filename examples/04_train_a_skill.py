"""Train a skill without an optimizer model. Failures become worked examples, which are kept if the score rises.

The model is a function that answers correctly once its skill has enough examples, as small models do.
    python examples/04_train_a_skill.py
"""

import asyncio
from collections.abc import Sequence

from ludus.envs.orders import Orders
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.proposers.exemplars import Exemplars
from ludus.reflact.records import Baseline, Step, Summary
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.runner import Runner
from ludus.types import Message, Sampling, ToolSpec

ENV = Orders()
TASKS = {split: tuple(ENV.tasks(split)) for split in ("train", "validation", "test")}
ANSWERS = {task.prompt: task.answer for tasks in TASKS.values() for task in tasks}


def answer_order(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
    """Answer correctly after four examples. The examples of the skill are sent as earlier turns."""
    seen = sum(message.role == "assistant" for message in messages)
    return ANSWERS[messages[-1].content] if seen >= 4 else "Happy to help with your order!"


async def main() -> None:
    policy = Policy(ScriptedModel(answer_order), examples_as="turns")
    splits = Splits.from_tasks(TASKS["train"], TASKS["validation"], TASKS["test"])
    settings = TrainSettings(
        recipe="reflact", epochs=1, batch_size=8, edit_budget=6, slow=SlowUpdate(enabled=False), memory=False
    )
    async for record in train(Runner(ENV), policy, splits, settings, proposer=Exemplars()):
        match record:
            case Baseline():
                print("baseline: the skill is empty")
            case Step():
                print(f"step {record.number}: {record.action}")
            case Summary():
                print(f"\n{record.best.skill.text}\n")
                for name, product in (("initial", record.initial), ("best", record.best)):
                    assert product.test is not None
                    print(f"{name}: {product.test.overall.hard:.0%} of {product.test.overall.tasks} test tasks")
            case _:
                pass


if __name__ == "__main__":
    asyncio.run(main())
