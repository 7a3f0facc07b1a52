"""Asking the optimizer: checked replies, a bounded number of tries, and nothing asked twice."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from ludus.errors import ModelError
from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import CALLS, CallRecord, Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import UnusableReply
from ludus.store import MemoryStore, RunDir, Store
from ludus.types import Completion, Finish, Message, Sampling, ToolSpec


class Answer(Struct, frozen=True):
    number: Annotated[int, Meta(ge=0)]
    words: tuple[str, ...] = ()


VALUES = {"notes": "- a", "count": "1"}


class Asked:
    """An optimizer whose model plays `replies` in order, whatever it is asked."""

    def __init__(self, *replies: Any, store: Store | None = None, tries: int = 3) -> None:
        self.replies = list(replies)
        self.heard: list[tuple[Message, ...]] = []
        self.sampled: list[Sampling] = []
        self.journal = Journal()
        self.store = store or MemoryStore()
        self.optimizer = Optimizer(
            ScriptedModel(self._play, name="m"), Prompts.load(), self.store, self.journal, tries=tries, reply_tokens=99
        )

    def _play(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Any:
        self.heard.append(tuple(messages))
        self.sampled.append(sampling)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, str | Completion) else json.dumps(reply)

    def ask(self, place: str = "1", **more: Any) -> Answer | UnusableReply:
        return asyncio.run(self._ask(place, **more))

    async def _ask(self, place: str, **more: Any) -> Answer | UnusableReply:
        return await self.optimizer.ask(
            "consolidate", VALUES, Answer, stage="s", place=place, otherwise="nothing was done", **more
        )


def test_a_good_reply_is_read_whatever_stands_around_it():
    asked = Asked('Well:\n```json\n{"number": "7", "words": null, "extra": 1}\n```')
    assert asked.ask() == Answer(7)
    (system, user) = asked.heard[0]
    assert (system.role, user.role) == ("system", "user")
    assert asked.journal.sum_costs()[0].calls == 1


def test_a_bad_reply_is_sent_back_with_what_is_wrong_with_it():
    asked = Asked({"number": "many"}, "I think it is 7.", {"number": 7})
    assert asked.ask() == Answer(7)
    second, third = asked.heard[1], asked.heard[2]
    assert [message.role for message in second] == ["system", "user", "assistant", "user"]
    assert second[2].content == '{"number": "many"}'
    assert "Expected `int`" in second[3].content
    assert "$.number" in second[3].content
    assert "no JSON object" in third[3].content
    assert len(third) == 4  # only the last bad reply is shown again
    assert asked.journal.list_events() == ()


def test_a_reply_that_stays_bad_is_a_recorded_event_and_not_a_crash():
    asked = Asked({"number": -1}, {"number": -1}, {"number": -2})
    result = asked.ask()
    assert isinstance(result, UnusableReply)
    assert (result.stage, result.place, result.tries, result.consequence) == ("s", "1", 3, "nothing was done")
    assert "number" in result.problem
    assert asked.journal.list_events() == (result,)
    assert asked.journal.sum_costs()[0].calls == 3


def test_a_reply_of_the_right_type_can_still_be_refused():
    asked = Asked({"number": 1}, {"number": 2})
    assert asked.ask(check=lambda reply: "" if reply.number == 2 else "it is not 2") == Answer(2)
    assert "it is not 2" in asked.heard[1][3].content


def test_a_reply_that_was_cut_off_or_withheld_is_not_read():
    cut = Completion(say('{"number": 1}'), Finish.LENGTH)
    withheld = Completion(say(""), Finish.FILTER)
    asked = Asked(cut, withheld, {"number": 3})
    assert asked.ask() == Answer(3)
    assert "cut off" in asked.heard[1][3].content
    assert "content filter" in asked.heard[2][3].content


def test_claims_about_where_an_item_comes_from_are_dropped():
    asked = Asked({"number": 1, "support": "a lot", "evidence": "I saw it", "source": 5, "level": "top"})
    assert asked.ask() == Answer(1)


def test_a_reply_is_found_again_and_not_asked_for(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}) as run:
        first = Asked({"number": "x"}, {"number": 1}, store=run)
        assert first.ask() == Answer(1)
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        again = Asked(store=run)
        assert again.ask() == Answer(1)
        assert again.heard == []
        assert again.journal.sum_costs() == first.journal.sum_costs()
        kept = [msgspec.json.decode(body, type=CallRecord) for _, body in run.read_records(CALLS)]
    assert [(c.stage, c.place, c.attempt, c.prompt, c.model) for c in kept] == [
        ("s", "1", 1, "consolidate", "m"),
        ("s", "1", 2, "consolidate", "m"),
    ]
    assert kept[0].prompt_hash == Prompts.load().get_hash("consolidate")
    assert kept[1].messages == first.heard[1]
    assert kept[0].sampling.max_tokens == 99


def test_another_place_and_another_try_draw_with_another_seed():
    asked = Asked({}, {"number": 1}, {"number": 2})
    asked.ask()
    asked.ask("2")
    assert len({sampling.seed for sampling in asked.sampled}) == 3


def test_secrets_are_masked_in_what_is_kept(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}, secrets=["hunter2-hunter2"]) as run:
        asked = Asked({"number": 1, "words": ["hunter2-hunter2"]}, store=run)
        assert asked.ask() == Answer(1, ("[redacted]",))  # the same now as it will be after a resume


def test_a_server_that_is_down_stops_the_run():
    for error in (ModelError("down"), ModelError("no such key", retryable=False)):
        with pytest.raises(ModelError):
            Asked(error).ask()
    with pytest.raises(ModelError, match="down"):
        asked = Asked({"number": 1}, ModelError("down"))
        asked.ask()
        asked.ask("2")


def test_a_server_that_refuses_one_conversation_makes_that_reply_unusable():
    asked = Asked({"number": 1}, ModelError("content filter", retryable=False))
    asked.ask()
    result = asked.ask("2")
    assert isinstance(result, UnusableReply)
    assert "refused it: content filter" in result.problem


def test_requests_are_limited():
    most = running = 0

    async def slowly(messages: Any, tools: Any, sampling: Any) -> str:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return '{"number": 1}'

    async def ask_many() -> None:
        optimizer = Optimizer(ScriptedModel(slowly), Prompts.load(), MemoryStore(), Journal(), concurrency=2)
        asks = [optimizer.ask("consolidate", VALUES, Answer, stage="s", place=str(n), otherwise="") for n in range(9)]
        assert await asyncio.gather(*asks) == [Answer(1)] * 9

    asyncio.run(ask_many())
    assert most == 2
