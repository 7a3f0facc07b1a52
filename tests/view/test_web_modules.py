"""The rules of the pages' modules: `ludus report` joins them into one file, and no text becomes markup."""

import re
import subprocess
import sys
from pathlib import Path

import ludus.view

WEB = Path(ludus.view.__file__).with_name("web")
MODULES = {path.name: path.read_text(encoding="utf-8") for path in sorted(WEB.glob("*.js"))}
IMPORT = re.compile(r'^import \{([\w,\s]+)\} from "\./(\w+\.js)";$', re.MULTILINE)


def list_imports(text: str) -> dict[str, list[str]]:
    """What a module imports, by module."""
    found = {source: re.findall(r"\w+", names) for names, source in IMPORT.findall(text)}
    begins = re.findall(r"^\s*import\b(?![.:])", text, re.MULTILINE)
    assert len(begins) == len(found), "an import that a report cannot join, or two of one module"
    return found


def list_names(text: str) -> list[str]:
    """The names at the top level of a module."""
    return re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.MULTILINE)


def test_imports_name_what_the_modules_export():
    for name, text in MODULES.items():
        for source, wanted in list_imports(text).items():
            exported = re.findall(
                r"^export (?:async )?(?:function|const|let|class) (\w+)", MODULES[source], re.MULTILINE
            )
            assert set(wanted) <= set(exported), (name, source)
        for line in text.splitlines():
            assert not line.startswith("export") or re.match(
                r"export (async function|function|const|let|class) ", line
            ), line


def test_modules_have_no_cycle_and_hang_together():
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a cycle: {' -> '.join((*above, name))}"
        if name not in order:
            for source in list_imports(MODULES[name]):
                visit(source, (*above, name))
            order.append(name)

    visit("main.js", ())
    assert sorted(order) == sorted(MODULES), "a module that no page uses"


def test_what_is_exported_is_imported():
    imported = {name for text in MODULES.values() for names in list_imports(text).values() for name in names}
    for text in MODULES.values():
        exported = re.findall(r"^export (?:async )?(?:function|const|let|class) (\w+)", text, re.MULTILINE)
        assert set(exported) <= imported


def test_a_name_is_used_once_over_all_modules():
    names = [name for text in MODULES.values() for name in list_names(text)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_text_becomes_markup():
    for name, text in MODULES.items():
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "</script",
            "javascript:",
        ):
            assert word not in text, (name, word)
        assert not re.search(r"\bstyle:|setAttribute\(\"style\"", text), name


def test_the_page_has_no_inline_script_and_no_style():
    page = (WEB / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
    assert "<style" not in page and "style=" not in page and "http" not in page


def test_the_types_of_the_api_are_those_of_the_read_model():
    script = Path(__file__).parents[2] / "scripts/update-web-types"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
