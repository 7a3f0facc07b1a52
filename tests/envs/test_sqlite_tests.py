"""Tests of SQL scripts, and scripts that attack them."""

import shutil

import pytest

from ludus.envs.sqlite_tests import run_sqlite_tests, split_script
from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score

FILES = {
    "create_fixture.sql": "CREATE TABLE numbers (n INTEGER, double INTEGER);\n.mode csv\n.import ./data.csv numbers\n",
    "data.csv": "1,\n2,\n",
    "create_test_table.sql": (
        "DROP TABLE IF EXISTS tests;\n"
        "CREATE TABLE tests (description TEXT, status TEXT DEFAULT 'fail', message TEXT, n INTEGER, expected);\n"
        "INSERT INTO tests (description, n, expected) VALUES ('one', 1, 2), ('two', 2, 4);\n"
    ),
    "x_test.sql": (
        ".read ./create_fixture.sql\n.mode markdown\n.output user_output.md\n.read ./x.sql\n.output\n"
        ".read ./create_test_table.sql\n"
        "UPDATE tests SET status = 'pass' FROM (SELECT n, double FROM numbers) AS actual\n"
        "WHERE (actual.n, actual.double) = (tests.n, tests.expected);\n.mode json\n.once ./output.json\n"
        "SELECT * FROM tests;\n"
    ),
}


def test_the_script_is_split_where_it_reads_the_solution():
    before, after = split_script(FILES["x_test.sql"], "x.sql")
    assert before.endswith("user_output.md\n") and after.startswith("\n.output\n.read ./create_test")
    with pytest.raises(VerifierError, match=r"no line `\.read y\.sql`"):
        split_script(FILES["x_test.sql"], "y.sql")


RIGHT = "UPDATE numbers SET double = 2 * n;"
ATTACKS = {
    "a view of the tests": "DROP TABLE numbers; CREATE VIEW numbers AS SELECT n, expected AS double FROM tests;",
    "a trigger": "CREATE TABLE tests (status); CREATE TRIGGER t AFTER UPDATE ON tests BEGIN SELECT 1; END;",
    "a virtual table": "DROP TABLE numbers; CREATE VIRTUAL TABLE numbers USING fts5(n, double, content='tests');",
    "leaving early": ".exit 0",
    "a process that waits": ".shell (while :; do cp /tmp/*/create_test_table.sql /workspace; done) > /dev/null 2>&1 &",
}


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="needs sqlite3")
async def test_scripts_are_judged_by_what_their_tables_hold(bwrap: str):
    async def judge_all() -> dict[str, Score]:
        found: dict[str, Score] = {}
        half = "UPDATE numbers SET double = 2;"
        view = "CREATE TABLE o AS SELECT n FROM numbers; DROP TABLE numbers; "
        view += "CREATE VIEW numbers AS SELECT n, 2 * n AS double FROM o;"
        scripts = {"right": RIGHT, "half": half, "view": view, "wrong": "SELECT * FROM absent;", **ATTACKS}
        async with open_pool(bwrap) as pool:
            for name, script in scripts.items():
                async with pool.lease(SandboxSpec()) as box:
                    await box.write("x.sql", script.encode())
                    found[name] = await run_sqlite_tests(box, "x.sql", "x_test.sql", FILES)
        return found

    scores = await judge_all()
    assert scores.pop("right") == scores.pop("view") == Score(1.0, True, 1.0, "All 2 tests passed.")
    half = scores.pop("half")
    assert (half.soft, half.feedback) == (0.5, "1 of 2 tests did not pass.\ntwo: fail")
    assert "no such table: absent" in scores.pop("wrong").feedback
    for name, score in scores.items():
        assert (score.value, score.soft) == (0.0, 0.0), f"{name}: {score}"
