from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.sandbox import Sandbox
from ludus.tools import BadArguments
from ludus.tools.files import FILE_BYTES, READ_CHARS, number_lines, patch_text
from ludus.tools.toolsets import make_tools

InBox = Callable[..., Any]
Call = Callable[..., Awaitable[str]]


def calling(box: Sandbox) -> Call:
    by_name = {tool.name: tool for tool in make_tools(["file"], box)}

    async def call(name: str, **arguments: object) -> str:
        return await by_name[name].run(arguments)

    return call


# ---- read and write -----------------------------------------------------------------------------------------------


async def test_write_read_patch(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(box)
        assert await call("write_file", path="a/b.txt", content="one\ntwo\n") == "Wrote a/b.txt: 8 bytes, 2 lines."
        assert await call("read_file", path="a/b.txt") == "     1\tone\n     2\ttwo"
        assert await call("read_file", path="/workspace/a/b.txt", offset="2") == "     2\ttwo"
        done = await call("patch", path="a/b.txt", old="two", new="zwei\ndrei")
        assert done == "Patched a/b.txt at line 2 (exact match)."
        assert await box.read("a/b.txt") == b"one\nzwei\ndrei\n"
        assert await call("write_file", path="a/b.txt", content="") == "Wrote a/b.txt: 0 bytes, 0 lines."
        assert await call("read_file", path="a/b.txt") == "[the file is empty]"


async def test_what_cannot_be_read_is_explained(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(box)
        await box.write("src/settings.py", b"x = 1\n")
        await box.write("image", b"\x89PNG\0\0\0")
        with pytest.raises(FileNotFoundError, match=r"^src/setings.py does not exist; did you mean settings.py\?$"):
            await call("read_file", path="src/setings.py")
        with pytest.raises(FileNotFoundError, match=r"^nowhere/at/all does not exist$"):
            await call("read_file", path="nowhere/at/all")
        with pytest.raises(IsADirectoryError, match="src is a folder; list it with search_files"):
            await call("read_file", path="src")
        with pytest.raises(ValueError, match="image is a binary file of 7 bytes"):
            await call("read_file", path="image")
        with pytest.raises(ValueError, match="offset 5 is past the end; the file has 1 lines"):
            await call("read_file", path="src/settings.py", offset=5)
        with pytest.raises(ValueError, match="NUL"):
            await call("read_file", path="a\0b")
        with pytest.raises(OSError, match="src"):
            await call("write_file", path="src", content="a folder cannot be written")
        with pytest.raises(BadArguments, match="`path`"):
            await call("read_file", path="")
        with pytest.raises(BadArguments, match=">= 1 - at `offset`"):
            await call("read_file", path="src/settings.py", offset=0)
        with pytest.raises(BadArguments, match="unknown field `file`; the parameters are: path, offset, limit"):
            await call("read_file", path="x", file="y")


async def test_a_file_that_is_too_large(in_box: InBox):
    async with in_box() as box:
        await box.exec(f"head -c {FILE_BYTES + 1} /dev/zero | tr '\\0' x > big")
        with pytest.raises(ValueError, match="big is larger than 10 MB; look at parts of it"):
            await calling(box)("read_file", path="big")


async def test_a_missing_folder_and_a_full_disk_are_reported(in_box: InBox):
    async with in_box() as box:
        call = calling(box)
        await box.exec("fallocate -l 1G filler || head -c 1G /dev/zero > filler")
        with pytest.raises(OSError, match=r"No space left|quota"):
            await call("write_file", path="more.txt", content="x" * 1_000_000)


async def test_paths_lead_nowhere_but_into_the_slot(in_box: InBox, tmp_path: Path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the host's")

    async with in_box() as box:
        call = calling(box)
        await box.exec(f"ln -s {secret} link; ln -s {tmp_path} folder")
        for path in (str(secret), f"../../../../../..{secret}", "link", "folder/secret.txt", f"/proc/1/root{secret}"):
            with pytest.raises(OSError, match=r"does not exist|may not be read"):
                await call("read_file", path=path)
        for path in (str(secret), "link", "folder/secret.txt"):
            # Writing may work, but then it is another file, in the slot.
            try:
                await call("write_file", path=path, content="the agent's")
            except OSError:
                continue
        for path in ("/tmp", ".", "folder"):
            assert await call("search_files", pattern="the host", path=path) == "No matches."
    assert secret.read_text() == "the host's"


odd_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
odd_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0/") | st.sampled_from("'\"\n\t $`\\*?[]-~;&|<>#"),
    min_size=1,
    max_size=30,
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


async def test_odd_names_and_contents_survive(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(box)

        @settings(max_examples=1, database=None)
        @given(st.lists(st.tuples(odd_names, odd_text), min_size=25, max_size=25, unique_by=lambda pair: pair[0]))
        def pairs(sampled: list[tuple[str, str]]) -> None:
            examples.extend(sampled)

        examples: list[tuple[str, str]] = [
            ("-rf", "x"),
            ("it's", '"$HOME"'),
            ("a\nb", "\r\n\n"),
            (" ", "é\u2028"),
            ("~", "`id`"),
        ]
        pairs()
        for name, content in examples:
            await call("write_file", path=f"odd/{name}", content=content)
            assert await box.read(f"odd/{name}") == content.encode()
            shown = await call("read_file", path=f"odd/{name}")
            assert shown == number_lines(content, 1, 2000)


def test_long_files_are_read_in_parts():
    text = "\n".join(f"line {n}" for n in range(1, 5001))
    first = number_lines(text, 1, 2000).split("\n")
    assert first[0] == "     1\tline 1"
    assert first[-2:] == ["  2000\tline 2000", "[lines 1 to 2000 of 5000; go on with offset=2001]"]
    assert number_lines(text, 5000, 2000) == "  5000\tline 5000"


def test_long_lines_are_cut_and_a_part_fits_the_budget():
    text = "\n".join(["x" * 10_000] * 100)
    shown = number_lines(text, 1, 2000)
    assert len(shown) < READ_CHARS + 200
    assert shown.startswith("     1\t" + "x" * 2000 + " [... 8000 more characters]\n")
    assert shown.endswith(" of 100; go on with offset=25]")


@given(st.text(st.sampled_from("ab\n\r\u2028\x0c")), st.integers(1, 5))
def test_reading_part_by_part_shows_every_line_once(text: str, limit: int):
    seen: list[str] = []
    offset = 1
    while text:
        rows = number_lines(text, offset, limit).split("\n")
        more = rows.pop() if rows[-1].startswith("[lines") else ""
        seen += [row.partition("\t")[2] for row in rows]
        if not more:
            break
        offset += limit
    assert seen == [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else not seen


# ---- patch --------------------------------------------------------------------------------------------------------

CODE = "def f(x):\n    if x:\n        return 1\n    return 2\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "result", "exact"),
    [
        ("one two", "two", "three", "one three", True),
        ("a\nb\nc\n", "b\n", "", "a\nc\n", True),
        ("a\nb\n", "a\nb", "ab", "ab\n", True),
        (CODE, "        return 1\n", "        return 3\n", CODE.replace("1", "3"), True),
        # Whitespace differs: indentation, trailing blanks, tabs, runs of blanks.
        (CODE, "if x:\n    return 1", "if x > 0:\n    return 1", CODE.replace("if x:", "if x > 0:"), False),
        ("a  =  1   \nb\n", "a = 1\n", "a = 2\n", "a = 2\nb\n", False),
        ("\tx = 1\n\ty = 2\n", "    x = 1\n    y = 2", "    x = 3\n    y = 4", "\tx = 3\n\ty = 4\n", False),
        (CODE, "  if x:\n    return 1\n", "", "def f(x):\n    return 2\n", False),
        ("x\n  last", "last  ", "end", "x\n  end", False),
        ("  a\n\n  b\n", "a\n\nb", "a\n\nc", "  a\n\n  c\n", False),
        # Line ends stay what they were.
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n", True),
        ("a\r\nb\r\n", "b", "c\nd", "a\r\nc\r\nd\r\n", True),
        ("a\r\nb\nc\n", "a\nb", "x\ny", "x\ny\nc\n", False),
        ("näh\n", "näh", "doch 😀", "doch 😀\n", True),
    ],
)
def test_patching(text: str, old: str, new: str, result: str, exact: bool):
    done = patch_text(text, old, new)
    assert (done.text, done.exact) == (result, exact)


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        ("a\na\nb\na\n", "a", "x", r"occurs 3 times, at lines 1, 2, 4; give more"),
        ("  a  b\n\ta   b\n", "a b\n", "x\n", r"occurs 2 times, at lines 1, 2"),
        ("a", "", "x", "`old` is empty"),
        ("a", "a", "a", "are the same"),
        ("a\n", "   \n  ", "x", "does not occur"),
        ("def total(items):\n    pass\n", "def totals(item):", "x", r"nearest lines are:\n     1\tdef total\(items\):"),
        ("nothing alike\n", "zzz", "x", "does not occur in the file; read the file"),
        ("", "zzz", "x", "does not occur"),
    ],
)
def test_what_cannot_be_patched_is_explained(text: str, old: str, new: str, says: str):
    with pytest.raises((ValueError, LookupError), match=says):
        patch_text(text, old, new)


def test_replacing_every_occurrence():
    done = patch_text("a\nba\nca", "a", "aa", replace_all=True)
    assert (done.text, done.at) == ("aa\nbaa\ncaa", (1, 2, 3))
    loose = patch_text("  x  y\nz\n x y \n", "x y\n", "q\n", replace_all=True)
    assert (loose.text, loose.at) == ("  q\nz\n q\n", (1, 3))
    assert patch_text("aaa", "aa", "b", replace_all=True).text == "ba"


@given(st.text(), st.text(min_size=1), st.text())
def test_an_exact_patch_is_what_str_replace_does(text: str, old: str, new: str):
    if old == new or old not in text or "\r" in text + old + new:
        return
    assert patch_text(text, old, new, replace_all=True).text == text.replace(old, new)


@given(st.text(st.sampled_from("ab \t\n\r")), st.text(st.sampled_from("ab \n\r"), min_size=1), st.text("ab \n"))
def test_a_patch_succeeds_or_gives_the_reason(text: str, old: str, new: str):
    try:
        done = patch_text(text, old, new)
    except (ValueError, LookupError) as error:
        assert str(error).startswith("patch: ")
    else:
        assert len(done.at) == 1


async def test_a_patch_that_fails_leaves_the_file_alone(in_box: InBox):
    async with in_box() as box:
        call = calling(box)
        await box.write("latin", "né\n".encode("latin-1"))
        with pytest.raises(ValueError, match="latin is not UTF-8 text"):
            await call("patch", path="latin", old="n", new="m")
        assert await box.read("latin") == "né\n".encode("latin-1")
        with pytest.raises(FileNotFoundError, match=r"missing.py does not exist"):
            await call("patch", path="missing.py", old="n", new="m")
        await box.write("f.py", CODE.encode())
        done = await call("patch", path="f.py", old="if x:\n    return 1", new="if x:\n    return 9")
        assert done == ("Patched f.py at line 2 (no exact match; matched ignoring whitespace, and indented to fit).")
        assert await box.read("f.py") == CODE.replace("1", "9").encode()


# ---- search -------------------------------------------------------------------------------------------------------


async def fill(box: Sandbox) -> None:
    await box.write("src/one.py", b"import os\nprint('one')\n")
    await box.write("src/two.py", b"import sys\nprint('two')\n")
    await box.write("src/.hidden.py", b"import hidden\n")
    await box.write(".git/config.py", b"import git\n")
    await box.write("notes.txt", "import ünï\ntab\there (paren) $dollar 'q'\n".encode())
    await box.write("with space/it's.py", b"import quoted\n")
    await box.write("blob.bin", b"import\0binary\n")


async def test_searching(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(box)
        await fill(box)
        assert (await call("search_files", pattern="^import")).split("\n") == [
            "notes.txt:1:import ünï",
            "src/.hidden.py:1:import hidden",
            "src/one.py:1:import os",
            "src/two.py:1:import sys",
            "with space/it's.py:1:import quoted",
        ]
        assert await call("search_files", pattern=r"print\('t\w+'\)", path="src") == "src/two.py:2:print('two')"
        assert await call("search_files", pattern="os$", path="/workspace/src/one.py") == "src/one.py:1:import os"
        assert await call("search_files", pattern="import", glob="*.txt") == "notes.txt:1:import ünï"
        assert (
            await call("search_files", pattern=r"\(paren\) \$dollar 'q'") == "notes.txt:2:tab\there (paren) $dollar 'q'"
        )
        assert await call("search_files", pattern="-e") == "No matches."
        assert await call("search_files", pattern=r"import\s+quoted", path="with space") == (
            "with space/it's.py:1:import quoted"
        )
        limited = await call("search_files", pattern="import", limit="2")
        assert limited.split("\n")[2:] == ["[there are more than 2 matches; narrow the search or raise limit]"]


async def test_searching_for_names(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(box)
        await fill(box)
        assert (await call("search_files", pattern="*.py", target="files")).split("\n") == [
            *("src/.hidden.py", "src/one.py", "src/two.py", "with space/it's.py")
        ]
        assert await call("search_files", pattern="one", target="files") == "src/one.py"
        for path in ("./", "./src", ".//./src/", "/workspace", "/workspace/src/../src"):
            assert (await call("search_files", pattern="one", target="files", path=path)).endswith("src/one.py")
        assert await call("search_files", pattern="src/t*", target="files") == "src/two.py"
        assert await call("search_files", pattern="*", target="files", glob="*.txt") == "notes.txt"
        assert await call("search_files", pattern="*.rs", target="files") == "No matches."


async def test_a_search_that_cannot_be_made(in_box: InBox):
    async with in_box() as box:
        call = calling(box)
        await fill(box)
        with pytest.raises(ValueError, match=r"(?i)parenthes|unclosed group"):
            await call("search_files", pattern="(open")
        with pytest.raises(ValueError, match="No such file or directory"):
            await call("search_files", pattern="x", path="nowhere")
        with pytest.raises(BadArguments, match="at `target`"):
            await call("search_files", pattern="x", target="names")


async def test_a_search_through_one_endless_line(in_box: InBox):
    async with in_box() as box:
        await box.exec("head -c 3000000 /dev/zero | tr '\\0' x > min.js")
        found = await calling(box)("search_files", pattern="xxx")
        assert found.startswith("min.js:1:xxxx")
        assert len(found) < 600


@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=25, max_size=25))
async def test_no_pattern_escapes_its_quotes(in_box: InBox, patterns: list[str]):
    async with in_box() as box:
        call = calling(box)
        await box.write("f", b"text\n")
        for pattern in [*patterns, "'; touch hacked; '", "$(touch hacked)", "-f/etc/passwd"]:
            for target in ("content", "files"):
                try:
                    await call("search_files", pattern=pattern, target=target, path=pattern or ".", glob=pattern)
                except ValueError:
                    continue
        assert (await box.exec("ls -A")).stdout == b"f\n"
