"""`ludus score`, and rewards over HTTP: from the first request of an agent to checked rows."""

import json
import urllib.error
from pathlib import Path

import pytest
from tests.cli_kit import post, serve_engine, serve_gateway, token_flags, write_doubles, write_sums

DOUBLE = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Doubles a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


def act(url: str, number: int, key: str, **headers: str) -> None:
    """An agent that is not ours: it asks, doubles the number it is given, and asks again."""
    messages: list[dict] = [{"role": "user", "content": f"Double {number}"}]
    for _ in range(2):
        body = {"model": "any", "messages": messages, "tools": [DOUBLE]}
        message = post(f"{url}/v1/chat/completions", body, key, **headers)["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or ():
            result = str(2 * json.loads(call["function"]["arguments"])["number"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def say(url: str, words: str, key: str, **headers: str) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": words}]}
    post(f"{url}/v1/chat/completions", body, key, **headers)


def refuse(status: int, *request: object) -> str:
    with pytest.raises(urllib.error.HTTPError, match=str(status)) as refused:
        post(*request)  # pyright: ignore[reportArgumentType]
    with refused.value as answer:
        return answer.read().decode()


def test_exact_sessions_become_checked_rows(typed, folder: Path, shipped: Path):
    write_doubles(folder)
    with serve_engine(shipped) as engine, serve_gateway(folder, *token_flags(engine, shipped)) as (_, url):
        act(url, 0, "task-0~1")
        act(url, 1, "task-0~2")  # an attempt at task 0 with the wrong number
        act(url, 1, "other", **{"x-ludus-task": "task%2D1"})
    code, out, err = typed("show", "run")
    assert code == 0 and "task-0" in out and "3 sessions have no score: ludus score run --env ENV" in err
    code, out, err = typed("check", "run")
    assert code == 2 and "no rows to check: 3 sessions have no score" in err
    code, out, err = typed("export", "run")
    assert (code, out) == (1, "") and "3 sessions have no score" in err

    code, out, err = typed("score", "run", "--env", "doubles.py")
    assert code == 0 and "3 sessions judged by doubles" in out, err
    found = json.loads(typed("show", "run", "--json")[1])
    assert found["summary"]["overall"]["scored"] == 3
    assert [(row["task"]["id"], row["score"]["value"]) for row in found["rollouts"]] == [
        ("task-0", 1.0),
        ("task-0", 0.0),
        ("task-1", 1.0),
    ]
    assert "Double 0" in typed("show", "run", "task-0")[1]
    code, out, err = typed("export", "run")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and "2 groups, 3 rows" in err
    assert [(row["task"], row["scores"], row["replicates"]) for row in rows] == [
        ("task-0", [1.0, 0.0], [0, 1]),
        ("task-1", [1.0], [0]),
    ]
    assert typed("check", "-", stdin=out)[0] == 0
    code, out, err = typed("check", "run", "--tokenizer", str(shipped))
    assert code == 0 and "2 groups, 3 rows" in out

    code, out, _ = typed("score", "run", "--env", "doubles.py", "--json")
    assert code == 0 and (json.loads(out)["scored"], json.loads(out)["kept"]) == (0, 3)
    text = (folder / "doubles.py").read_text().replace("Score.of(float(", "Score.of(0.25 + float(")
    (folder / "kinder.py").write_text(text)
    assert json.loads(typed("score", "run", "--env", "kinder.py", "--again", "--json")[1])["scored"] == 3
    assert json.loads(typed("show", "run", "--json")[1])["rollouts"][1]["score"]["value"] == 0.25


def test_rewards_are_taken_from_whoever_has_their_token(typed, folder: Path):
    write_sums(folder)
    script = ["--model.type", "scripted", "--model.script", "models.py:right"]
    flags = [*script, "--gateway.score_token_var", "SCORES", "--gateway.token_var", "AGENTS"]
    tokens = {"SCORES": "score-secret", "AGENTS": "agent-secret"}
    with serve_gateway(folder, *flags, environment=tokens) as (_, url):
        say(url, "1+1", "agent-secret.sum-1~a")
        say(url, "2+2", "agent-secret.sum-2")
        score = f"{url}/sessions/sum-1~a/score"
        assert "nothing here" in refuse(404, score, {"reward": 1}, "agent-secret.sum-1~a")  # the session's own key
        assert "token for scores" in refuse(401, score, {"reward": 1}, "agent-secret")
        assert post(score, {"reward": 0.5}, "score-secret") == {"session": "sum-1~a", "task": "sum-1", "reward": 0.5}
        assert "already has the score 0.5" in refuse(409, score, {"reward": 1}, "score-secret")
        assert "no session 'nobody'" in refuse(404, f"{url}/sessions/nobody/score", {"reward": 1}, "score-secret")
    with serve_gateway(folder, *flags, environment=tokens) as (_, url):  # the gateway is started again
        assert "already has the score 0.5" in refuse(
            409, f"{url}/sessions/sum-1~a/score", {"reward": 1}, "score-secret"
        )
        assert post(f"{url}/sessions/sum-2/score", {"reward": 1}, "score-secret")["task"] == "sum-2"
    found = json.loads(typed("show", "run", "--json")[1])
    assert [(row["task"]["id"], row["score"]["value"]) for row in found["rollouts"]] == [("sum-1", 0.5), ("sum-2", 1.0)]
    assert not any(secret in path.read_bytes() for path in (folder / "run").iterdir() for secret in (b"score-secret",))


def test_a_reward_that_was_answered_survives_a_kill(typed, folder: Path):
    write_sums(folder)
    flags = ["--model.type", "scripted", "--model.script", "models.py:right", "--gateway.score_token_var", "SCORES"]
    with serve_gateway(folder, *flags, environment={"SCORES": "score-secret"}) as (process, url):
        say(url, "1+1", "sum-1")
        post(f"{url}/sessions/sum-1/score", {"reward": 0.5}, "score-secret")
        process.kill()
        process.wait(60)
    (row,) = json.loads(typed("show", "run", "--json")[1])["rollouts"]
    assert (row["task"]["id"], row["score"]["value"], row["answer"]) == ("sum-1", 0.5, "2")


def test_what_cannot_be_judged_says_why(typed, folder: Path):
    write_sums(folder)
    script = ["--model.type", "scripted", "--model.script", "models.py:half_broken"]
    with serve_gateway(folder, *script) as (_, url):
        refuse(502, f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "1+1"}]}, "sum-1")
        say(url, "2+2", "sum-2")
        say(url, "3+3", "som-3")
        assert "POST /sessions" not in refuse(404, f"{url}/sessions/sum-2/score", {"reward": 1}, "sum-2")  # it is off
    assert "which environment" in typed("score", "run")[2]
    assert "has none: name an environment without a sandbox" in typed("score", "run", "--env", "terminal-test")[2]
    code, out, err = typed("score", "run", "--env", "sums.py")
    assert code == 1 and "1 sessions judged by sums, 1 failed and have none" in out
    assert "no such task in split 'train'; did you mean 'sum-3'?" in err
    broken = (
        (folder / "sums.py").read_text().replace("return Score", "raise ValueError('on fire')\n        return Score")
    )
    (folder / "broken.py").write_text(broken.replace("class Sums", "class Broken"))
    code, out, err = typed("score", "run", "--env", "broken.py", "--again")
    assert code == 1 and "no score: task 'sum-2'" in err and "on fire" in err
    assert json.loads(typed("show", "run", "--json")[1])["summary"]["overall"]["scored"] == 1  # the score stays
    typed("evaluate", "sums.py", "--out", "batch", "--model.type", "scripted", "--model.script", "models.py:right")
    assert "holds no sessions of the gateway" in typed("score", "batch", "--env", "sums.py")[2]
