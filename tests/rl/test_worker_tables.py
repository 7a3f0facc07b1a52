"""What `ludus serve` shows."""

from ludus.rl.worker import WorkerProgress, WorkerReport
from ludus.rl.worker_tables import WorkerLine, describe_worker, print_worker_report


def test_progress_in_words():
    assert describe_worker(WorkerProgress(3, 10, 0, 2, None)) == "step 3 · 10 groups sent · 2 running"
    assert describe_worker(WorkerProgress(3, 10, 4, 2, 0.25)).endswith("4 dropped · 2 running · last reward 0.250")


def test_the_line_is_only_drawn_on_a_terminal(capsys):
    with WorkerLine("coins") as line:
        line(WorkerProgress(0, 1, 0, 1, 1.0))
    assert capsys.readouterr() == ("", "")


def test_the_report_says_why_groups_were_not_sent(capsys):
    print_worker_report(WorkerReport(finished=True, step=9, verdicts={"sent": 5, "equal_scores": 2}, waiting=1))
    out = capsys.readouterr().out
    assert "groups sent" in out and "not sent: equal scores" in out and "begun, not sent" in out
