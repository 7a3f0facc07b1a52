import asyncio
import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ModelError, ModelUnusable
from ludus.http_client import Timeouts
from ludus.models import server_pool
from ludus.models.openai import ChatModel, make_chat_server
from ludus.models.server import Endpoint, Price, Retry, ServerFault
from ludus.models.server_pool import Lane, RateBucket, ServerPool, Timing, choose_lane, compute_backoff
from ludus.models.settings import OpenAISettings
from ludus.types import Message, Sampling

USER = [Message("user", "hi")]
PLAIN = Sampling()
DOWN = ServerFault("down", retryable=True, down=True)
BUSY = ServerFault("busy", retryable=True)


async def ask(kit, *handlers, times: int = 1, retry=Retry(), **settings):
    """One model over a server per handler, asked so many times in a row. Returns replies or errors, servers, clock."""

    time = kit.FakeTime()
    servers = [kit.Loopback(handler) for handler in handlers]
    for server in servers:
        await server.__aenter__()
    model = ChatModel(
        OpenAISettings(name="m", retry=retry, **settings),
        *(Endpoint(server.url) for server in servers),
        timing=time.timing,
    )
    got = []
    try:
        for _ in range(times):
            try:
                got.append((await model.complete(USER, [], PLAIN)).message.content)
            except ModelError as error:
                got.append(error)
    finally:
        await model.close()
        for server in servers:
            await server.__aexit__()
    return got, servers, time


# ---- trying again -------------------------------------------------------------------------------------------------


async def test_an_error_then_a_reply(kit):
    got, (server,), time = await ask(kit, kit.sequence(kit.response(b"", 500), None, b"junk", kit.chat_reply("ok")))
    assert got == ["ok"]
    assert len(server.requests) == 4
    assert time.slept[:2] == [0.25, 0.5]


async def test_other_statuses_are_not_retried(kit):
    (error,), (server,), time = await ask(kit, kit.sequence(kit.response({"error": "bad"}, 400), kit.chat_reply("ok")))
    assert isinstance(error, ModelError)
    assert not error.retryable
    assert "status 400: bad" in str(error)
    assert (len(server.requests), time.slept) == (1, [])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "a web page"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"choices": ', "not a completion"),
        (None, "closed before any response"),
    ],
)
async def test_a_lasting_fault_is_raised_after_the_last_attempt(kit, answer, words):
    (error,), (server,), _ = await ask(kit, kit.sequence(answer), retry=Retry(retries=3))
    assert isinstance(error, ModelError)
    assert error.retryable
    assert "no usable reply after 4 attempts; the last: http://127.0.0.1:" in str(error)
    assert words in str(error)
    assert len(server.requests) == 4


async def test_an_unreachable_server_is_retried_and_reported(kit):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/v1"
        time = kit.FakeTime()
        model = ChatModel(OpenAISettings(base_url=url, name="m"), timing=time.timing)
        with pytest.raises(ModelError, match=r"after 7 attempts; the last: .* connection refused"):
            await model.complete(USER, [], PLAIN)
        await model.close()
        result = time.slept
    assert len(result) >= 6


async def test_many_429s_are_retried_at_the_servers_pace(kit):
    storm = [kit.response({"error": "slow down"}, 429, Retry_After="20")] * 5
    got, (server,), time = await ask(kit, kit.sequence(*storm, kit.chat_reply("ok")))
    assert got == ["ok"]
    assert len(server.requests) == 6
    assert all(wait >= 20 for wait in time.slept)
    assert len(time.slept) == 5


async def test_one_429_slows_everyone_down(kit):
    """Requests that were not refused themselves also leave the server alone until it is ready."""

    time = kit.FakeTime()
    times: list[float] = []

    async def handler(request, writer):
        times.append(time.now)
        return kit.response(b"", 429, Retry_After="30") if len(times) == 1 else kit.response(kit.chat_reply())

    async with kit.Loopback(handler) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m", concurrency=1), timing=time.timing)
        await asyncio.gather(*(model.complete(USER, [], PLAIN) for _ in range(5)))
        await model.close()
    first, *rest = times
    assert len(rest) == 5
    assert all(at >= first + 30 for at in rest)


async def test_a_slow_server_against_the_time_limit(kit):
    async def handler(request, writer):
        await asyncio.Event().wait()

    (error,), _, _ = await ask(kit, handler, timeouts=Timeouts(total=0.02), retry=Retry(retries=1))
    assert "after 2 attempts" in str(error) and "no whole response in time" in str(error)


async def test_on_retry_is_called_for_each_retry(kit):
    seen: list[ServerFault] = []
    time = kit.FakeTime()
    handler = kit.sequence(kit.response(b"", 503), kit.response(b"", 429), kit.chat_reply())
    async with kit.Loopback(handler) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m"), timing=time.timing)
        await model.complete(USER, [], PLAIN, on_retry=seen.append)
        await model.close()
    assert [fault.down for fault in seen] == [True, False]


@given(st.integers(1, 50), st.none() | st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_jittered_and_honours_the_server(attempt, asked, sample):
    retry = Retry()
    wait = compute_backoff(attempt, asked, retry, sample)
    if asked is None:
        assert 0 <= wait <= min(retry.longest, retry.first * 2.0 ** (attempt - 1))
    else:
        assert min(asked, retry.longest_asked) <= wait <= retry.longest_asked + retry.first


# ---- several servers ----------------------------------------------------------------------------------------------


async def test_work_is_spread_evenly(kit):
    _, servers, _ = await ask(kit, *[kit.sequence(kit.chat_reply())] * 3, times=9)
    assert [len(s.requests) for s in servers] == [3, 3, 3]


async def test_of_two_servers_one_is_dead(kit):
    got, (dead, alive), time = await ask(kit, kit.sequence(None), kit.sequence(kit.chat_reply("ok")), times=20)
    assert got == ["ok"] * 20
    assert len(alive.requests) == 20
    assert len(dead.requests) == 3  # then it is set aside, and the clock does not move
    assert time.slept == []


async def test_a_server_that_comes_back_is_used_again(kit):
    time = kit.FakeTime()
    dead = True

    async def flaky(request, writer):
        return None if dead else kit.response(kit.chat_reply("back"))

    async with kit.Loopback(flaky) as first, kit.Loopback(kit.sequence(kit.chat_reply("ok"))) as second:
        urls = (first.url, second.url)
        model = ChatModel(OpenAISettings(name="m", base_url=urls[0], servers=tuple(urls[1:])), timing=time.timing)

        async def some(count):
            return [(await model.complete(USER, [], PLAIN)).message.content for _ in range(count)]

        assert await some(10) == ["ok"] * 10
        tried = len(first.requests)
        time.now += 1
        assert await some(10) == ["ok"] * 10
        assert len(first.requests) == tried + 1  # one probe, and it is set aside for longer
        dead = False
        time.now += 1
        assert set(await some(10)) == {"ok", "back"}
        await model.close()


async def test_a_doubtful_server_is_probed_by_one_request_alone(kit):
    time = kit.FakeTime()
    broken = True
    all_there = asyncio.Event()

    async def handler(request, writer):
        if server.active == 9:
            all_there.set()
        if len(server.requests) > 4:  # three that broke it, and the probe
            await all_there.wait()
        return kit.response(b"", 500) if broken else kit.response(kit.chat_reply())

    async with kit.Loopback(handler) as server:
        settings = OpenAISettings(base_url=server.url, name="m", retry=Retry(retries=0))
        model = ChatModel(settings, timing=time.timing)
        for _ in range(3):
            with pytest.raises(ModelError):
                await model.complete(USER, [], PLAIN)
        server.peak, broken = 0, False
        tasks = [asyncio.ensure_future(model.complete(USER, [], PLAIN)) for _ in range(10)]
        await tasks[0]
        assert server.peak == 1
        await asyncio.gather(*tasks)
        assert server.peak == 9
        await model.close()


async def test_servers_that_never_answered_fail_all_requests_soon(kit):
    """A wrong address must not keep a whole run waiting."""

    time = kit.FakeTime()
    async with kit.Loopback(kit.sequence(None)) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m", concurrency=10), timing=time.timing)
        many = (model.complete(USER, [], PLAIN) for _ in range(1000))
        results = await asyncio.gather(*many, return_exceptions=True)
        before = len(server.requests)
        with pytest.raises(ModelError, match="no server has answered for") as late:
            await model.complete(USER, [], PLAIN)
        assert len(server.requests) == before, "nobody knocks again"
        assert isinstance(late.value, ModelUnusable), "the run stops"
        assert not late.value.retryable
        await model.close()
    results, requests = results, before
    assert all(isinstance(r, ModelError) for r in results)
    assert requests < 100


async def test_a_server_that_dies_stops_the_run_in_a_minute_and_may_come_back(kit):
    """1000 requests do not take their seven attempts one after the other."""

    time = kit.FakeTime()
    async with kit.Loopback(kit.sequence(kit.chat_reply("ok"), None)) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m", concurrency=10), timing=time.timing)
        await model.complete(USER, [], PLAIN)
        began = time.now
        results = await asyncio.gather(*(model.complete(USER, [], PLAIN) for _ in range(1000)), return_exceptions=True)
        took, requests = time.now - began, len(server.requests)
        time.now += 1
        with pytest.raises(ModelUnusable, match="no server has answered for"):
            await model.complete(USER, [], PLAIN)
        assert len(server.requests) == requests + 1, "a later request tries once"
        time.now += 1
        server.handler = kit.sequence(kit.chat_reply("back"))
        assert (await model.complete(USER, [], PLAIN)).message.content == "back"
        await model.close()
    assert all(isinstance(r, ModelError) for r in results)
    gave_up = [r for r in results if isinstance(r, ModelUnusable) and "no server has answered for" in str(r)]
    assert len(gave_up) > 900
    assert requests < 200
    assert took < 150, "with a clock that adds up the sleeps of all requests"


def lane(active=0, turn=0, failures=0, closed_until=0.0, concurrency=4) -> Lane:
    settings = OpenAISettings(name="m", concurrency=concurrency)
    made = Lane(make_chat_server(settings, Endpoint("http://h")), now=0.0)
    made.active, made.turn, made.failures, made.closed_until = active, turn, failures, closed_until
    return made


def test_the_choice_of_a_server():
    retry = Retry(failures=3)
    idle, busy, full = lane(), lane(active=3), lane(active=4)
    big = lane(active=3, concurrency=100)
    aside, probing, due = lane(failures=3, closed_until=9), lane(failures=3, active=1), lane(failures=3)
    assert choose_lane([busy, idle], 5, retry) is idle
    assert choose_lane([busy, big], 5, retry) is big
    assert choose_lane([full, busy], 5, retry) is busy
    assert choose_lane([full], 5, retry) is None
    assert choose_lane([aside, busy], 5, retry) is busy
    assert choose_lane([aside, busy], 9, retry) is aside
    assert choose_lane([probing, full], 5, retry) is None
    assert choose_lane([probing, due], 5, retry) is due
    assert choose_lane([aside, lane(closed_until=8)], 5, retry).closed_until == 8
    assert choose_lane([idle, busy], 5, retry, avoid=idle) is busy
    assert choose_lane([idle, full], 5, retry, avoid=idle) is idle
    assert choose_lane([lane(turn=2), lane(turn=1)], 5, retry).turn == 1


def test_failures_that_come_together_set_a_server_aside_once_and_later_ones_for_longer():
    retry = Retry(failures=3, first=1, longest=5)
    doubtful = lane()
    for _ in range(50):
        doubtful.note_fault(DOWN, 100.0, retry)
    assert doubtful.closed_until == 101
    waits = []
    for _ in range(5):
        at = doubtful.closed_until
        doubtful.note_fault(DOWN, at, retry)
        waits.append(doubtful.closed_until - at)
    assert waits == [2, 4, 5, 5, 5]
    doubtful.note_answer()
    assert doubtful.has_room(at, retry)
    doubtful.note_fault(DOWN, at, retry)
    assert doubtful.has_room(at, retry)


def test_a_refusal_proves_that_the_server_is_up():
    retry = Retry()
    doubtful = lane()
    for _ in range(3):
        doubtful.note_fault(DOWN, 100.0, retry)
    assert not doubtful.has_room(100.0, retry)
    doubtful.note_fault(BUSY, 100.0, retry)
    doubtful.active = 2
    assert doubtful.has_room(100.0, retry)


def test_being_busy_is_not_being_down():
    retry = Retry()
    busy = lane()
    for _ in range(50):
        busy.note_fault(BUSY, 100.0, retry)
    assert busy.has_room(100.0, retry)
    busy.note_fault(ServerFault("busy", retryable=True, retry_after=1e9), 100.0, retry)
    assert not busy.has_room(100.0 + 119, retry)
    busy.note_answer()  # an older request's success does not overrule what the server asked for
    assert not busy.has_room(100.0 + 119, retry)
    assert busy.has_room(100.0 + 120, retry)


# ---- limits -------------------------------------------------------------------------------------------------------


async def test_concurrency_is_limited_per_server_and_turns_are_in_order(kit):
    async def main():
        all_there = asyncio.Event()

        async def handler(request, writer):
            if server.active == 4:
                all_there.set()
            await all_there.wait()
            await asyncio.sleep(0.001)
            return kit.response(kit.chat_reply(request.json["messages"][0]["content"]))

        async with kit.Loopback(handler) as server:
            model = ChatModel(OpenAISettings(base_url=server.url, name="m", concurrency=4))
            conversations = [[Message("user", str(n))] for n in range(40)]
            got = await asyncio.gather(*(model.complete(messages, [], PLAIN) for messages in conversations))
            await model.close()
        return [c.message.content for c in got], server

    got, server = await main()
    assert got == [str(n) for n in range(40)]
    assert (server.peak, server.connections) == (4, 4)
    order = [int(r.json["messages"][0]["content"]) for r in server.requests]
    assert all(abs(place - n) < 8 for place, n in enumerate(order))


async def test_requests_are_paced(kit):
    got, _, time = await ask(kit, kit.sequence(kit.chat_reply("ok")), times=5, requests_per_minute=30)
    assert got == ["ok"] * 5
    assert time.slept == pytest.approx([2, 2, 2, 2])


async def test_tokens_are_paced_by_what_they_turn_out_to_be(kit):
    """15 tokens a reply, as the server counts, at 60 a minute: 15 s each, whatever was expected."""
    _, _, time = await ask(kit, kit.sequence(kit.chat_reply("ok")), times=5, tokens_per_minute=60)
    assert time.slept == pytest.approx([15, 15, 15, 15])


@given(
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 50)), min_size=1, max_size=30),
)
def test_a_bucket_lets_through_no_more_than_its_rate(per_minute, arrivals):
    bucket, now = RateBucket(per_minute, 0.0), 0.0
    burst = max(1.0, per_minute / 60)
    passed, last = 0.0, 0.0
    for pause, amount in arrivals:
        now += pause
        at = now + bucket.take(amount, now)
        assert at >= last - 1e-6  # in order of arrival
        last = at
        assert passed + min(amount, burst) <= burst + at * per_minute / 60 + 1e-6
        passed += amount


# ---- cancelling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["request", "queue", "pace", "backoff"])
async def test_a_cancelled_request_gives_back_what_it_held(kit, where):
    """Three requests on one turn are held up; the first two, or the one in the queue, are cancelled."""

    held_up, release = asyncio.Event(), asyncio.Event()

    async def handler(request, writer):
        if not release.is_set():
            if where == "backoff":
                return kit.response(b"", 500)
            if where != "pace":
                held_up.set()
                await release.wait()
        return kit.response(kit.chat_reply())

    async def sleep(seconds):
        held_up.set()
        await release.wait()

    timing = Timing(clock=lambda: 1000.0, sleep=sleep)
    async with kit.Loopback(handler) as server:
        rate = 1 if where == "pace" else None
        settings = OpenAISettings(base_url=server.url, name="m", concurrency=1, requests_per_minute=rate)
        model = ChatModel(settings, timing=timing)
        tasks = [asyncio.ensure_future(model.complete(USER, [], PLAIN)) for _ in range(3)]
        await held_up.wait()
        victims = tasks[1:2] if where == "queue" else tasks[:2]
        for task in victims:
            task.cancel()
        await asyncio.wait(victims)
        release.set()
        for task in set(tasks) - set(victims):
            assert (await task).message.content == "hello"
        assert (await model.complete(USER, [], PLAIN)).message.content == "hello"
        await model.close()
        await server.closed()


@given(st.lists(st.integers(0, 19), max_size=12), st.integers(1, 3))
async def test_turns_are_never_lost_whatever_is_cancelled(victims, concurrency):
    """20 requests on few turns; some are cancelled at random moments; the rest all end, and all turns come back."""

    settings = OpenAISettings(base_url="http://h", name="m", concurrency=concurrency)
    model = ChatModel(settings)

    class Fake:
        def __init__(self):
            self.settings = settings
            self.active = self.peak = 0

        async def attempt(self, messages, tools, sampling):
            self.active += 1
            self.peak = max(self.peak, self.active)
            try:
                await asyncio.sleep(0)
                return "done"
            finally:
                self.active -= 1

    fake = model._lanes[0].server = Fake()
    tasks = [asyncio.ensure_future(model.complete(USER, [], PLAIN)) for _ in range(20)]
    for victim in victims:
        await asyncio.sleep(0)
        tasks[victim].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(r == "done" or isinstance(r, asyncio.CancelledError) for r in results)
    assert all(r == "done" for n, r in enumerate(results) if n not in victims)
    assert fake.peak <= concurrency
    assert model._lanes[0].active == 0
    assert not model._queue


async def test_close_twice_and_calls_after_it(kit):
    async with kit.Loopback(kit.sequence(kit.chat_reply())) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m"))
        await model.complete(USER, [], PLAIN)
        await model.close()
        await model.close()
        with pytest.raises(ModelError, match="was closed") as caught:
            await model.complete(USER, [], PLAIN)
        assert not caught.value.retryable


def test_names_and_prices_of_several_servers():
    settings = [
        OpenAISettings(name="m", price=Price(completion=1)),
        OpenAISettings(name="m", price=Price(completion=3)),
        OpenAISettings(name="org/m"),
    ]
    model = ServerPool([make_chat_server(each, Endpoint("http://h")) for each in settings])
    assert model.name == "m|org/m"
    assert model.price == Price(completion=3)


# ---- what cannot get better ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, {"error": "bad key"}),
        (402, {"error": "no credit"}),
        (403, {"error": "not for you"}),
        (404, {"error": "no such model"}),
        (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
    ],
)
async def test_a_refusal_that_would_meet_every_request_makes_the_model_unusable(kit, status, body):
    (error,), (server,), _ = await ask(kit, kit.sequence(kit.response(body, status)))
    assert isinstance(error, ModelUnusable)
    assert f"status {status}" in str(error)
    assert (len(server.requests), error.retryable) == (1, False)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_of_one_request_says_nothing_about_the_others(kit, status):
    (error, reply), _, _ = await ask(
        kit, kit.sequence(kit.response({"error": "x"}, status), kit.chat_reply("ok")), times=2
    )
    assert isinstance(error, ModelError) and not isinstance(error, ModelUnusable)
    assert reply == "ok"


@pytest.mark.parametrize(("status", "stops"), [(401, True), (403, False), (404, False)])
async def test_after_a_reply_only_a_lost_key_stops_the_run(kit, status, stops):
    """Providers answer 403 to a single request that they find offensive."""
    answers = kit.sequence(kit.chat_reply("ok"), kit.response({"error": "flagged"}, status), kit.chat_reply("ok"))
    (_, error, last), _, _ = await ask(kit, answers, times=3)
    assert isinstance(error, ModelUnusable) == stops
    assert last == "ok", "a later request is sent: the key may be valid again"


async def test_requests_that_wait_for_their_turn_are_not_sent_after_a_wrong_key(kit):
    async with kit.Loopback(kit.sequence(kit.response({"error": "bad key"}, 401))) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m", concurrency=1))
        many = (model.complete(USER, [], PLAIN) for _ in range(192))
        results = await asyncio.gather(*many, return_exceptions=True)
        await model.close()
        results, requests = results, len(server.requests)
    assert all(isinstance(result, ModelUnusable) for result in results)
    assert requests == 1


# ---- reports of a wait --------------------------------------------------------------------------------------------


async def tell_of(kit, *answers, retry=Retry()):
    """What the user is told while one request is answered so."""
    told: list[str] = []

    async def main():
        time = kit.FakeTime()
        async with kit.Loopback(kit.sequence(*answers)) as server:
            settings = OpenAISettings(base_url=server.url, name="m", retry=retry)
            model = ChatModel(settings, timing=time.timing, tell=told.append)
            with contextlib.suppress(ModelError):
                await model.complete(USER, [], PLAIN)
            await model.close()
            return server.url

    url = await main()
    return [text.replace(url, "URL") for text in told]


async def test_a_wait_of_some_seconds_is_reported(kit):
    busy = kit.response(b"", 429, Retry_After="20")
    assert await tell_of(kit, busy, busy, busy, kit.chat_reply("ok")) == [
        "waiting for URL/chat/completions (status 429), 0 s; next attempt in 20 s",
        "waiting for URL/chat/completions (status 429), 40 s; next attempt in 20 s",
    ]


async def test_a_server_that_goes_away_is_reported_from_the_time_of_the_first_failure(kit):
    first, *_ = await tell_of(kit, None)
    assert first.startswith("waiting for URL/chat/completions (the connection was closed before any response), ")


async def test_a_short_wait_is_not_reported(kit):
    assert await tell_of(kit, kit.response(b"", 500), kit.response(b"", 500), kit.chat_reply("ok")) == []


async def test_a_server_that_never_says_a_word_is_reported(kit, monkeypatch):
    monkeypatch.setattr(server_pool, "FIRST_NOTICE_AFTER", 0.01)
    told: list[str] = []

    heard = asyncio.Event()

    async def handler(request, writer):
        await heard.wait()
        return kit.response(kit.chat_reply("ok"))

    def tell(text):
        told.append(text)
        heard.set()

    async with kit.Loopback(handler) as server:
        model = ChatModel(OpenAISettings(base_url=server.url, name="m"), tell=tell)
        async with asyncio.timeout(60):
            await model.complete(USER, [], PLAIN)
            await model.complete(USER, [], PLAIN)
        await model.close()
    assert len(told) == 1
    assert told[0].startswith("waiting for the first reply of http://127.0.0.1:")
