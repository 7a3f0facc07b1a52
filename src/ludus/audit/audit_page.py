"""The page of an audit: a table of tasks and attacks."""

import html

from ludus.audit.findings import AuditReport, TaskAudit

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1d2433 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .35rem .6rem; vertical-align: top; border-bottom: 1px solid #e3e6ec }
.bad { color: #a11 } .ok { color: #17663a } .dim { color: #667 } code { font-size: 13px }
@media (prefers-color-scheme: dark) {
  body { background: #14171f; color: #dfe3ea } th, td { border-color: #2b303c }
  .bad { color: #ff8a80 } .ok { color: #7ddba3 } .dim { color: #9aa3b5 }
}
"""


def render_page(report: AuditReport) -> str:
    """The page, with no code and nothing from elsewhere."""
    tasks = sorted(report.tasks, key=lambda task: (task.sound, task.task))
    counts_on = {each.attack: each.counts_on for task in report.tasks for each in task.paid if each.counts_on}
    parts = [
        f"<h1>Audit of {_escape(report.env)}</h1>",
        f"<p class='{'ok' if report.ok else 'bad'}'>{_escape(report.words)}</p>",
        *(f"<p class='dim'>{_escape(note)}</p>" for note in (*report.notes, *report.checks)),
        _describe_guess(report),
        "<table><tr><th>task</th><th>reference</th><th>nothing</th><th>paid</th><th>noticed</th><th>problems</th></tr>",
        *(_render_row(task) for task in tasks),
        "</table>",
        "<h2>What the paid attacks count on</h2><ul>" if counts_on else "",
        *(f"<li><b>{_escape(name)}</b>: {_escape(text)}</li>" for name, text in counts_on.items()),
        "</ul>" if counts_on else "",
    ]
    head = (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\"><meta name='viewport' "
        "content='width=device-width'>"
    )
    return f"{head}<title>Audit of {_escape(report.env)}</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"


def _render_row(task: TaskAudit) -> str:
    paid = "<br>".join(f"{_escape(each.attack)} ({each.value:g})" for each in task.paid)
    cells = [
        f"<code>{_escape(task.task)}</code>",
        " ".join(f"{value:g}" for value in task.reference) or "–",
        " ".join(f"{value:g}" for value in task.nothing) or "–",
        f"<span class='bad'>{paid}</span>" if paid else f"<span class='ok'>0 of {task.attacks}</span>",
        _escape(", ".join(task.noticed)),
        "<br>".join(f"<span class='bad'>{_escape(each)}</span>" for each in task.problems),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _describe_guess(report: AuditReport) -> str:
    if report.guess is None:
        return ""
    return f"<p>The best constant answer is <code>{_escape(report.guess.answer)}</code>: {report.guess.mean:.2f}.</p>"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
