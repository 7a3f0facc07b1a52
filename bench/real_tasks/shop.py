"""Answer questions about a small shop with SQL. The table has conventions that its columns do not tell."""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool, tool
from ludus.types import Call, Message, Rollout, Score, Task
from ludus.verify.numbers import find_number

sys.path.insert(0, str(Path(__file__).parent))
from splits import cut

CUSTOMERS = (
    "Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia", "Nils", "Olga",
    "Paul", "Rosa", "Sam", "Tina", "Uwe", "Vera", "Will", "Yara", "Zoe", "Alma", "Bob", "Cora",
)  # fmt: skip
MOST_ROWS = 20
STEPS = 1_000_000
"""The most steps of a query: a few milliseconds."""
QUESTIONS = {
    "total": ("What do the orders of {} cost in total, in euros?", "SELECT SUM(amount) / 100.0"),
    "count": ("How many orders does {} have?", "SELECT COUNT(*)"),
    "largest": ("What does the most expensive order of {} cost, in euros?", "SELECT MAX(amount) / 100.0"),
    "mean": ("What does an order of {} cost on average, in euros?", "SELECT AVG(amount) / 100.0"),
}
SKILL = """\
Amounts are in cents. Divide them by 100 to get euros.
Orders with status 'X' are cancelled. Leave them out of every answer: add AND status != 'X' to the query.
"""


def make_rows() -> list[tuple[str, int, str]]:
    """The orders: customer, amount in cents, status. The same at all times."""
    rng = Random("shop")
    rows: list[tuple[str, int, str]] = []
    for customer in CUSTOMERS:
        for number in range(rng.randint(2, 6)):
            status = "X" if number and rng.random() < 0.3 else "P"
            rows.append((customer, rng.randint(200, 9900), status))
    return rows


def open_shop() -> sqlite3.Connection:
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL, status TEXT)")
    base.executemany("INSERT INTO orders (customer, amount, status) VALUES (?, ?, ?)", make_rows())
    base.execute("PRAGMA query_only = ON")
    base.set_progress_handler(lambda: 1, STEPS)
    return base


def run_query(sql: str) -> str:
    """The first rows of a query on a fresh copy of the shop, or what is wrong with it."""
    base = open_shop()
    try:
        rows = base.execute(sql).fetchmany(MOST_ROWS + 1)
    except sqlite3.Error as error:
        return f"Error: {error}"
    finally:
        base.close()
    lines = [" | ".join(map(str, row)) for row in rows[:MOST_ROWS]]
    return "\n".join([*lines, *(["(more rows)"] if len(rows) > MOST_ROWS else [])]) or "(no rows)"


@tool
async def query(sql: str) -> str:
    """Run a SQL query (SQLite) and return its rows."""
    return run_query(sql)


class Shop(Env, frozen=True):
    """Answer questions about a small shop with SQL."""

    name: ClassVar[str] = "shop"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "You answer questions about the table orders(id, customer, amount, status). You do not know its rows: call the "
        "tool query first, with SQL that gives the number. When you have its result, answer with that number alone."
    )
    facts: ClassVar[EnvFacts] = EnvFacts(scored="the last number of the answer")

    def tasks(self, split: str) -> Iterator[Task]:
        base = open_shop()
        tasks = [
            Task(
                id=f"{kind}-{customer}",
                prompt=text.format(customer),
                answer=base.execute(
                    f"{select} FROM orders WHERE customer = ? AND status != 'X'", [customer]
                ).fetchone()[0],
                kind=kind,
            )
            for kind, (text, select) in QUESTIONS.items()
            for customer in CUSTOMERS
        ]
        base.close()
        yield from cut(tasks, split, self.name)

    def opening(self, task: Task) -> tuple[Message, ...]:
        """An example comes first. Without one, this model answers with a number that it made up."""
        call = Call("example", "query", '{"sql": "SELECT COUNT(DISTINCT customer) FROM orders"}')
        return (
            Message("user", "How many customers are there?"),
            Message("assistant", calls=(call,)),
            Message("tool", str(len(CUSTOMERS)), call_id=call.id),
            Message("assistant", str(len(CUSTOMERS))),
            *super().opening(task),
        )

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [query]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        found = find_number(rollout.answer)
        right = found is not None and abs(float(found) - rollout.task.answer) < 0.011
        return Score.of(float(right), "Right." if right else f"The right number is {rollout.task.answer:g}.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return str(task.answer)
