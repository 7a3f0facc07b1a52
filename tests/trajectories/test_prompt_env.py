"""The environment of prompts: slots, working folders, system texts, checks, and commands that need a score."""

from pathlib import Path

import pytest
from tests.build import make_rollout, make_task
from tests.cli_kit import Ludus
from tests.trajectories_kit import SCRIPT, write_prompts

from ludus.errors import ConfigError
from ludus.sandbox import ImageSpec, SandboxSpec
from ludus.trajectories.prompt_env import PromptEnv


def test_options_decide_the_slot_and_the_tools():
    assert (PromptEnv(slots="none").sandbox, PromptEnv(slots="none").toolsets) == (None, ())
    assert (PromptEnv().sandbox, PromptEnv().toolsets) == (SandboxSpec(), ("terminal", "file"))
    images = PromptEnv(slots="images")
    assert images.sandbox == SandboxSpec(image=ImageSpec())
    assert images.slot(make_task(details={"image": "py:3"}), SandboxSpec()).image == ImageSpec(name="py:3")
    assert images.slot(make_task(), SandboxSpec(image=ImageSpec())).image is None
    assert images.use_images("named") is images
    with pytest.raises(ConfigError, match=r"sandbox\.backend: rows name images"):
        images.use_images("host")


def test_a_row_has_a_system_text_and_a_conversation_of_its_own():
    said = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3?"}]
    task = make_task(details={"system": "S", "messages": said})
    assert PromptEnv().make_system(task) == "S"
    assert [(m.role, m.content) for m in PromptEnv().opening(task)] == [(m["role"], m["content"]) for m in said]
    assert [m.content for m in PromptEnv().opening(make_task(prompt="go"))] == ["go"]


async def test_a_check_scores_and_without_one_nothing_does(folder: Path):
    write_prompts(folder, {"prompt": "x"})
    checked = PromptEnv(check="models.py:is_right")
    assert (checked.scores_rollouts, checked.verify_in, list(checked.list_code())) == (
        True,
        "same",
        [folder / "models.py"],
    )
    rollout = make_rollout(1.0, "4", task=make_task(answer="4"))
    assert (await checked.verify(rollout, None)).passed
    bare = PromptEnv()
    assert (bare.scores_rollouts, bare.verify_in, list(bare.list_code())) == (False, "fresh", [])


def test_other_commands_need_a_check(ludus: Ludus, folder: Path):
    write_prompts(folder, {"prompt": "2+2?", "answer": "4"})
    words = ("evaluate", "prompts", "--env.path", "prompts.jsonl", *SCRIPT, "--json")
    code, _, err = ludus(*words, "--out", "r")
    assert (code, "set env.check" in err) == (2, True)
    code, out, err = ludus(*words, "--out", "r", "--env.check", "models.py:is_right", "--env.slots", "none")
    assert (code, '"mean":1.0' in out.replace(" ", "")) == (0, True), err


def test_prompts_need_a_file():
    with pytest.raises(ConfigError, match=r"env\.path: which prompts"):
        list(PromptEnv().tasks("train"))
