"""The report and the page of an audit."""

from ludus.audit.audit_page import render_page
from ludus.audit.audit_table import SHOWN, format_report
from ludus.audit.findings import AuditReport, Guess, Paid, TaskAudit

BAD = TaskAudit(task="<b>1</b>", paid=(Paid("x", 1.0, "a shadowed module"),), noticed=("y",), problems=("it is flaky",))


def make_report(*tasks: TaskAudit) -> AuditReport:
    return AuditReport(env="e", version="1", split="train", attacks=("x", "y"), tasks=tasks, guess=Guess("yes", 0.6))


def test_the_report_names_what_was_paid_and_why():
    text = format_report(make_report(BAD, TaskAudit(task="good")))
    for words in (
        "paid: x (1)",
        "noticed: y",
        "it is flaky",
        "x: a shadowed module",
        "'yes', earns 0.60 of 1: too many",
    ):
        assert words in text
    assert text.endswith("NOT sound: 1 of 2 attacks paid, 1 noticed; 1 of 2 tasks have a problem")
    assert "good" not in text


def test_a_long_report_is_cut():
    tasks = [TaskAudit(task=str(number), problems=("p",)) for number in range(SHOWN + 3)]
    assert "… and 3 more tasks" in format_report(make_report(*tasks))


def test_the_page_escapes_what_tasks_say():
    page = render_page(make_report(BAD))
    assert "&lt;b&gt;1&lt;/b&gt;" in page and "<b>1</b>" not in page and "<script" not in page
