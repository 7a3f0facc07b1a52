import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import BudgetExhausted, ModelError, ModelUnusable
from ludus.models.ledger import Amount, Budget, Ledger, LedgerReserve, MeteredModel, RunBudget, Totals, find_exceeded
from ludus.models.openai import ChatModel
from ludus.models.scripted import ScriptedModel
from ludus.models.server import Price
from ludus.models.settings import OpenAISettings
from ludus.types import Completion, Message, Sampling, Usage

USER = [Message("user", "hi")]
PLAIN = Sampling()


async def spend(ledger: Ledger, role: str, usage: Usage, estimate: Usage | None = None) -> None:
    async with ledger.reserve(role, estimate or usage) as charge:
        charge.settle(usage)


# ---- booking ------------------------------------------------------------------------------------------------------


async def test_what_is_spent_is_booked_by_role():
    ledger = Ledger()
    await spend(ledger, "agent", Usage(10, 5, 2, 0.5))
    await spend(ledger, "agent", Usage(1, 1))
    await spend(ledger, "judge", Usage(3, 3, 0, 0.25))
    assert set(ledger.roles) == {"agent", "judge"}
    assert ledger.roles["agent"].calls == 2
    assert ledger.roles["agent"].usage == Usage(11, 6, 2, 0.5)
    assert ledger.total.calls == 3
    assert ledger.total.usage == Usage(14, 9, 2, 0.75)
    assert ledger.total.seconds >= 0
    assert ledger.reserved == Amount()


@pytest.mark.parametrize("error", [ModelError("broken"), asyncio.CancelledError(), KeyError("a bug")])
async def test_a_call_that_fails_costs_nothing_but_is_counted(error):
    ledger = Ledger(Budget(calls=1, tokens=10, dollars=1.0))

    with pytest.raises(type(error)):
        async with ledger.reserve("agent", Usage(5, 5, 0, 1.0)):
            assert ledger.reserved == Amount(1, 10, 1.0)
            raise error
    assert ledger.reserved == Amount()
    assert (ledger.total.calls, ledger.total.failed, ledger.total.usage) == (0, 1, Usage())
    await spend(ledger, "agent", Usage(5, 5, 0, 1.0))


async def test_a_resumed_run_continues_its_totals():
    before = {"agent": Totals(calls=3, usage=Usage(10, 10))}
    ledger = Ledger(Budget(calls=4), spent=before)
    await spend(ledger, "agent", Usage(1, 1))
    assert ledger.roles["agent"].calls == 4
    with pytest.raises(BudgetExhausted):
        await spend(ledger, "agent", Usage(1, 1))


# ---- budgets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(calls=2), r"budget of 2 calls is spent: 2 used, .* Raise budget\.calls"),
        (Budget(tokens=2500), r"budget of 2,500 tokens is spent: 2,000 used, and the next call needs about 1,000"),
        (Budget(dollars=0.5), r"budget of 0\.5 dollars is spent: 0\.4 used, and the next call needs about 0\.2\."),
    ],
)
async def test_a_spent_budget_is_named(budget, words):
    ledger = Ledger(budget)
    usage = Usage(900, 100, 0, 0.2)
    await spend(ledger, "agent", usage)
    await spend(ledger, "agent", usage)
    with pytest.raises(BudgetExhausted, match=words):
        await spend(ledger, "agent", usage)
    assert ledger.total.calls == 2
    assert ledger.total.failed == 0


async def test_a_budget_can_be_spent_to_the_last_token():
    ledger = Ledger(Budget(calls=1, tokens=100, dollars=0.5))
    await spend(ledger, "agent", Usage(60, 40, 0, 0.5))
    assert ledger.total.usage.tokens == 100


async def test_reservations_of_others_are_waited_for():
    """Ten calls expect 100 tokens of 190 and take 10 each: they fit, one after the other."""
    ledger = Ledger(Budget(tokens=190))
    together = 0

    async def one():
        nonlocal together
        async with ledger.reserve("agent", Usage(100)) as charge:
            together = max(together, ledger.reserved.calls)
            await asyncio.sleep(0)
            charge.settle(Usage(10))

    await asyncio.gather(*(one() for _ in range(10)))
    assert (ledger.total.calls, ledger.total.usage.tokens, together) == (10, 100, 1)


def test_which_limit_is_exceeded():
    budget = Budget(calls=1, tokens=10, dollars=1.0)
    assert find_exceeded(budget, Amount(1, 10, 1.0)) is None
    assert find_exceeded(budget, Amount(2, 99, 9.0)) == "calls"
    assert find_exceeded(budget, Amount(1, 11, 9.0)) == "tokens"
    assert find_exceeded(budget, Amount(1, 10, 1.1)) == "dollars"
    assert find_exceeded(Budget(), Amount(10**9, 10**12, 1e9)) is None


outcomes = st.sampled_from(["ok", "ok", "ok", "fail", "cancel"])
callers = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 5), outcomes), max_size=25)


@given(callers, st.integers(0, 12), st.none() | st.integers(0, 200))
async def test_no_interleaving_overspends_and_every_reservation_is_released(callers, calls, tokens):
    """Callers arrive, take time, return less than they estimated, fail, or are cancelled wherever they are."""
    ledger = Ledger(Budget(calls=calls, tokens=tokens))

    async def call(wait: int, estimate: int, length: int, outcome: str) -> str:
        for _ in range(wait):
            await asyncio.sleep(0)
        async with ledger.reserve("agent", Usage(estimate, 0, 0, 0.1)) as charge:
            for _ in range(length):
                assert ledger.total.calls + ledger.reserved.calls <= calls
                await asyncio.sleep(0)
            if outcome == "fail":
                raise ModelError("broken")
            charge.settle(Usage(estimate // 2, 0, 0, 0.1))
        return "ok"

    tasks = [asyncio.ensure_future(call(*caller)) for caller in callers]
    for task, (wait, _, length, outcome) in zip(tasks, callers, strict=True):
        if outcome == "cancel":
            for _ in range((wait + length) // 2):
                await asyncio.sleep(0)
            task.cancel()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(r == "ok" or isinstance(r, ModelError | BudgetExhausted | asyncio.CancelledError) for r in results)
    assert ledger.reserved == Amount()
    assert ledger.total.calls == results.count("ok") <= calls
    assert tokens is None or ledger.total.usage.tokens <= tokens
    if any(isinstance(r, BudgetExhausted) for r in results) and tokens is None:
        assert ledger.total.calls == calls


# ---- metered models -----------------------------------------------------------------------------------------------


async def test_a_metered_model_books_what_its_replies_took():
    ledger = Ledger()
    reply = Completion(Message("assistant", "x"), usage=Usage(10, 5, 0, 0.5))
    model = MeteredModel(ScriptedModel([reply], name="fake"), ledger, "judge")
    assert await model.complete(USER, [], PLAIN) == reply
    assert model.name == "fake"
    assert ledger.roles["judge"].usage == reply.usage
    await model.close()


async def test_a_metered_model_stops_before_the_call():
    calls = []
    model = MeteredModel(ScriptedModel(lambda *_: calls.append(1) or "x"), Ledger(Budget(calls=2)), "agent")
    for _ in range(2):
        await model.complete(USER, [], PLAIN)
    with pytest.raises(BudgetExhausted):
        await model.complete(USER, [], PLAIN)
    assert len(calls) == 2


async def test_tokens_and_dollars_are_reserved_by_estimate():
    seen = []
    ledger = Ledger(Budget(tokens=10_000, dollars=10.0))

    def script(messages, tools, sampling):
        seen.append(ledger.reserved)
        return "x"

    model = MeteredModel(ScriptedModel(script), ledger, "agent", Price(prompt=1000, completion=2000))
    await model.complete([Message("user", "x" * 392)], [], Sampling(max_tokens=500))
    await model.complete(USER, [], PLAIN)
    assert seen[0].tokens == 100 + 500
    assert seen[0].dollars == pytest.approx(0.1 + 1.0)
    assert seen[1].tokens > 1000


def test_a_reply_that_was_not_counted_is_booked_as_estimated_where_a_budget_depends_on_it():
    uncounted = Completion(Message("assistant", "x" * 4000))

    def spent(budget: Budget) -> Ledger:
        ledger = Ledger(budget)
        model = MeteredModel(ScriptedModel(lambda *_: uncounted), ledger, "agent", Price(prompt=1000, completion=1000))
        with pytest.raises(BudgetExhausted):
            for _ in range(100):
                asyncio.run(model.complete(USER, [], Sampling(max_tokens=97)))
        return ledger

    assert spent(Budget(tokens=1000)).total.usage.tokens == 1000
    assert spent(Budget(dollars=1.0)).total.usage.dollars == pytest.approx(1.0)
    assert spent(Budget(calls=3)).total.usage == Usage()


async def test_a_server_that_should_report_its_cost_and_does_not_stops_a_run_with_a_budget_in_dollars():
    def make(budget: Budget, dollars: float) -> MeteredModel:
        reply = Completion(Message("assistant", "x"), usage=Usage(10, 5, dollars=dollars))
        return MeteredModel(ScriptedModel(lambda *_: reply), Ledger(budget), "agent", Price(reported=True))

    await make(Budget(dollars=1.0), 0.1).complete(USER, [], PLAIN)
    await make(Budget(tokens=9_999), 0.0).complete(USER, [], PLAIN)
    with pytest.raises(ModelUnusable, match=r"reported no cost for a reply, which budget\.dollars needs"):
        await make(Budget(dollars=1.0), 0.0).complete(USER, [], PLAIN)


async def test_retries_are_counted_and_charged_once(kit):
    ledger, time = Ledger(Budget(calls=1)), kit.FakeTime()
    handler = kit.sequence(kit.response(b"", 500), kit.response(b"", 429), b"junk", kit.chat_reply())
    async with kit.Loopback(handler) as server:
        settings = OpenAISettings(base_url=server.url, name="m", price=Price(prompt=1, completion=1))
        model = MeteredModel(ChatModel(settings, timing=time.timing), ledger, "agent")
        await model.complete(USER, [], PLAIN)
        await model.close()
        assert len(server.requests) == 4
    total = ledger.roles["agent"]
    assert (total.calls, total.failed, total.retries) == (1, 0, 3)
    assert total.usage == Usage(10, 5, 0, 15e-6)
    assert ledger.reserved == Amount()


async def test_attempts_that_all_fail_are_not_charged(kit):
    ledger, time = Ledger(), kit.FakeTime()
    async with kit.Loopback(kit.sequence(kit.response(b"", 500))) as server:
        model = MeteredModel(
            ChatModel(OpenAISettings(base_url=server.url, name="m"), timing=time.timing), ledger, "agent"
        )
        with pytest.raises(ModelError):
            await model.complete(USER, [], PLAIN)
        await model.close()
    total = ledger.total
    assert (total.calls, total.failed, total.retries, total.usage) == (0, 1, 6, Usage())


# ---- limits of one role, and what is kept back ----------------------------------------------------------------------


async def test_a_role_has_a_budget_of_its_own():
    ledger = Ledger(RunBudget(calls=10, optimizer=Budget(calls=1)))
    for role in ("optimizer", "agent", "agent"):
        async with ledger.reserve(role, Usage()) as charge:
            charge.settle(Usage(1, 1))
    with pytest.raises(BudgetExhausted, match=r"budget of 1 calls is spent: 1 used.*Raise budget\.optimizer\.calls"):
        async with ledger.reserve("optimizer", Usage()):
            pass
    async with ledger.reserve("agent", Usage()) as charge:
        charge.settle(Usage(1, 1))
    assert ledger.total.calls == 4


async def test_what_is_kept_back_is_refused_until_it_is_released():
    ledger = Ledger(RunBudget(tokens=100))
    reserve = LedgerReserve(ledger)
    reserve.hold(6, 0)
    async with ledger.reserve("agent", Usage(20, 20)) as charge:
        charge.settle(Usage(20, 20))
    reserve.hold(3, 2)  # two rollouts took 40 tokens, so three will take 60
    with pytest.raises(BudgetExhausted, match="60 kept back for shipping and test"):
        async with ledger.reserve("optimizer", Usage(1, 0)):
            pass
    reserve.release()
    async with ledger.reserve("agent", Usage(50, 10)) as charge:
        charge.settle(Usage(50, 10))
