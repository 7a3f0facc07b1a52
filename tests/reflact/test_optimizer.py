"""Requests to the optimizer: checked replies, a limited number of tries, and no request made twice."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from ludus.errors import ModelError, ModelUnusable
from ludus.models import Model, anthropic, openai
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import CALLS, REPLY_CHARS, CallRecord, Optimizer
from ludus.reflact.prompt_templates import Prompts, find_fields
from ludus.reflact.records import UnusableReply
from ludus.store import MemoryStore, RunDir
from ludus.types import Completion, Finish, Message, Sampling, ToolSpec


class Answer(Struct, frozen=True):
    number: Annotated[int, Meta(ge=0)]
    words: tuple[str, ...] = ()


VALUES = {"notes": "- a", "count": "1"}


class ScriptedOptimizer:
    """An optimizer whose model plays `replies` in order, whatever it is asked."""

    def __init__(self, *replies: Any, store: Any = None, tries: int = 3, ledger: Ledger | None = None) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[Message, ...]] = []
        self.sampled: list[Sampling] = []
        self.journal = Journal()
        self.store = store or MemoryStore()
        model: Model = ScriptedModel(self._play, name="m")
        if ledger is not None:
            model = MeteredModel(model, ledger, "optimizer")
        self.optimizer = Optimizer(model, Prompts.load(), self.store, self.journal, tries=tries, reply_tokens=99)

    def _play(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Any:
        self.requests.append(tuple(messages))
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
    scripted = ScriptedOptimizer('Well:\n```json\n{"number": "7", "words": null, "extra": 1}\n```')
    assert scripted.ask() == Answer(7)
    (system, user) = scripted.requests[0]
    assert (system.role, user.role) == ("system", "user")
    assert scripted.journal.sum_costs()[0].calls == 1


def test_a_bad_reply_is_sent_back_with_what_is_wrong_with_it():
    scripted = ScriptedOptimizer({"number": "many"}, "I think it is 7.", {"number": 7})
    assert scripted.ask() == Answer(7)
    second, third = scripted.requests[1], scripted.requests[2]
    assert [message.role for message in second] == ["system", "user", "assistant", "user"]
    assert second[2].content == '{"number": "many"}'
    assert "Expected `int`" in second[3].content
    assert "$.number" in second[3].content
    assert "no JSON object" in third[3].content
    assert len(third) == 4  # only the last bad reply is shown again
    assert scripted.journal.list_events() == ()


def test_a_reply_that_stays_bad_is_a_recorded_event_and_not_a_crash():
    scripted = ScriptedOptimizer({"number": -1}, {"number": -1}, {"number": -2})
    result = scripted.ask()
    assert isinstance(result, UnusableReply)
    assert (result.stage, result.place, result.tries, result.consequence) == ("s", "1", 3, "nothing was done")
    assert "number" in result.problem
    assert scripted.journal.list_events() == (result,)
    assert scripted.journal.sum_costs()[0].calls == 3


def test_a_reply_of_the_right_type_can_still_be_refused():
    scripted = ScriptedOptimizer({"number": 1}, {"number": 2})
    assert scripted.ask(check=lambda reply: "" if reply.number == 2 else "it is not 2") == Answer(2)
    assert "it is not 2" in scripted.requests[1][3].content


def test_a_reply_that_was_cut_off_or_withheld_is_not_read():
    cut = Completion(say('{"number": 1}'), Finish.LENGTH)
    withheld = Completion(say(""), Finish.FILTER)
    scripted = ScriptedOptimizer(cut, withheld, {"number": 3})
    assert scripted.ask() == Answer(3)
    assert "cut off" in scripted.requests[1][3].content
    assert "content filter" in scripted.requests[2][3].content


def test_a_reply_of_millions_of_characters_is_not_read():
    scripted = ScriptedOptimizer(f'{{"number": 1}}{" " * REPLY_CHARS}', {"number": 2})
    assert scripted.ask() == Answer(2)
    assert "at most 1,000,000 are read" in scripted.requests[1][3].content


def test_a_reply_that_is_too_long_is_stored_in_part_and_decided_in_the_same_way_after_a_resume(tmp_path: Path):
    long = "secret " * (REPLY_CHARS // 2) + '{"number": 1}'
    with RunDir.open(tmp_path / "run", {}) as run:
        first = ScriptedOptimizer(long, {"number": 2}, store=run)
        assert first.ask() == Answer(2)
        (_, body), _ = run.read_records(CALLS)
    assert len(body) < 20_000 and msgspec.json.decode(body, type=CallRecord).chars == len(long)
    said = first.requests[1][2].content
    assert said.startswith("secret ") and said.endswith('{"number": 1}') and "characters left out" in said
    assert f"{len(long):,} characters" in first.requests[1][3].content
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        again = ScriptedOptimizer(store=run)
        assert again.ask() == Answer(2) and again.requests == []


def test_a_long_reply_that_an_earlier_version_stored_whole_leads_to_the_same_requests():
    long, store = "x" * (REPLY_CHARS + 1), MemoryStore()
    first = ScriptedOptimizer(long, {"number": 2}, store=store)
    first.ask()
    key = next(key for key, (_, body) in store.bodies.items() if b'"attempt":1' in body)
    kept = msgspec.json.decode(store.bodies[key][1], type=CallRecord)
    whole = msgspec.structs.replace(kept, chars=0, completion=Completion(say(long)))
    store.bodies[key] = (CALLS, msgspec.json.encode(whole))
    again = ScriptedOptimizer(store=store)
    assert again.ask() == Answer(2) and again.requests == []


def test_claims_about_where_an_item_comes_from_are_dropped():
    scripted = ScriptedOptimizer({"number": 1, "support": "a lot", "evidence": "I saw it", "source": 5, "level": "top"})
    assert scripted.ask() == Answer(1)


def test_a_reply_is_found_again_and_not_asked_for(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}) as run:
        first = ScriptedOptimizer({"number": "x"}, {"number": 1}, store=run)
        assert first.ask() == Answer(1)
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        again = ScriptedOptimizer(store=run)
        assert again.ask() == Answer(1)
        assert again.requests == []
        assert again.journal.sum_costs() == first.journal.sum_costs()
        kept = [msgspec.json.decode(body, type=CallRecord) for _, body in run.read_records(CALLS)]
    assert [(c.stage, c.place, c.attempt, c.prompt, c.model) for c in kept] == [
        ("s", "1", 1, "consolidate", "m"),
        ("s", "1", 2, "consolidate", "m"),
    ]
    assert kept[0].prompt_hash == Prompts.load().get_hash("consolidate")
    assert kept[1].messages == first.requests[1]
    assert kept[0].sampling.max_tokens == 99


def test_another_place_and_another_try_draw_with_another_seed():
    scripted = ScriptedOptimizer({}, {"number": 1}, {"number": 2})
    scripted.ask()
    scripted.ask("2")
    assert len({sampling.seed for sampling in scripted.sampled}) == 3


def test_secrets_are_masked_in_what_is_kept(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}, secrets=["hunter2-hunter2"]) as run:
        scripted = ScriptedOptimizer({"number": 1, "words": ["hunter2-hunter2"]}, store=run)
        assert scripted.ask() == Answer(1, ("[redacted]",))  # the same now as it will be after a resume


def test_a_server_that_is_down_stops_the_run():
    for error in (ModelError("down"), ModelError("no such key", retryable=False)):
        with pytest.raises(ModelError):
            ScriptedOptimizer(error).ask()
    with pytest.raises(ModelError, match="down"):
        scripted = ScriptedOptimizer({"number": 1}, ModelError("down"))
        scripted.ask()
        scripted.ask("2")


def test_a_model_that_cannot_be_used_any_more_stops_the_run():
    scripted = ScriptedOptimizer({"number": 1}, ModelUnusable("status 401"))
    scripted.ask()
    with pytest.raises(ModelUnusable, match="status 401"):
        scripted.ask("2")


def test_a_server_that_refuses_one_conversation_makes_that_reply_unusable():
    scripted = ScriptedOptimizer({"number": 1}, ModelError("content filter", retryable=False))
    scripted.ask()
    result = scripted.ask("2")
    assert isinstance(result, UnusableReply)
    assert "refused it: content filter" in result.problem


@pytest.mark.parametrize("prompt", ["analyst_failure", "merge_final", "rank", "consolidate"])
async def test_the_model_gets_the_stage_of_a_request_and_the_store_does_not(prompt: str):
    scripted = ScriptedOptimizer({"number": 1})
    values = dict.fromkeys(find_fields(Prompts.load().get_text(prompt)), "x")
    await scripted.optimizer.ask(prompt, values, Answer, stage="s", place="1", otherwise="")
    (sampling,) = scripted.sampled
    assert sampling.stage == prompt
    ((_, body),) = scripted.store.read_records(CALLS)
    record = msgspec.json.decode(body, type=CallRecord)
    assert type(record.sampling) is Sampling and record.sampling.stage == ""
    assert "stage" not in msgspec.json.decode(body)["sampling"]
    assert Sampling().stage == ""


def test_a_stage_passes_the_ledger_and_is_in_no_request_to_a_server():
    scripted = ScriptedOptimizer({"number": 1}, ledger=Ledger())
    scripted.ask()
    (sampling,), (messages,) = scripted.sampled, scripted.requests
    assert sampling.stage == "consolidate"
    for dialect in (openai, anthropic):
        body = dialect.build_request(messages, (), sampling, "m")
        assert b'"stage"' not in body and b'"consolidate"' not in body


async def test_requests_are_limited():
    most = running = 0

    async def slowly(messages: Any, tools: Any, sampling: Any) -> str:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return '{"number": 1}'

    optimizer = Optimizer(ScriptedModel(slowly), Prompts.load(), MemoryStore(), Journal(), concurrency=2)
    asks = [optimizer.ask("consolidate", VALUES, Answer, stage="s", place=str(n), otherwise="") for n in range(9)]
    assert await asyncio.gather(*asks) == [Answer(1)] * 9
    assert most == 2


@pytest.mark.parametrize("levels", [400, 900, 980, 990, 995, 1_000, 50_000])
def test_a_reply_that_is_nested_too_deeply_is_unusable(levels: int):
    scripted = ScriptedOptimizer('{"number": ' + "[" * levels + "]" * levels + "}", {"number": 1})
    assert scripted.ask() == Answer(1)
    assert len(scripted.requests) == 2


def test_half_a_surrogate_pair_is_sent_back_or_replaced(tmp_path: Path):
    scripted = ScriptedOptimizer("\ud800 no JSON", '{"number": 1, "words": ["\\ud800"]}', {"number": 2})
    assert scripted.ask() == Answer(2)
    assert "half of a surrogate pair" in scripted.requests[-1][-1].content
    assert scripted.requests[1][-2].content == "\ufffd no JSON"


async def test_values_that_are_not_valid_text_are_asked_about_all_the_same():
    scripted = ScriptedOptimizer({"number": 1})
    ask = scripted.optimizer.ask(
        "consolidate", {**VALUES, "notes": "\udfff"}, Answer, stage="s", place="1", otherwise=""
    )
    assert await ask == Answer(1)
    assert "\ufffd" in "".join(message.content for message in scripted.requests[0])
