"""Tools for files in the slot: read with line numbers, write, patch, search.

Every path is resolved in the slot, never on the host, whatever `..`, links or absolute paths are in it. For a path that
does not exist, is a folder, or holds a binary or too large file, the agent gets an error that says what to do instead.

`patch` replaces a piece of text. It looks for the exact text first. If there is none, it looks for the one place whose
lines differ only in whitespace, and reports that. It never chooses between several places, and does not change a file
that is not UTF-8 text. `search_files` uses ripgrep if the slot has it, and else find and grep, with the same results:
hidden files are searched, `.git` is not, and files are in the order of their paths.
"""

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

from msgspec import Meta

from ludus.sandbox import WORKSPACE, Sandbox
from ludus.tools import Tool, tool
from ludus.tools.terminal import clean_output

FILE_BYTES = 10_000_000
"""The largest file that a tool reads."""
READ_LINES = 2_000
LINE_CHARS = 2_000
READ_CHARS = 50_000
"""How much `read_file` shows at once. The rest is read with the next offset."""
MATCHES = 500
"""The most matches that one search returns."""
SEARCH_SECONDS = 60.0

Path = Annotated[str, Meta(description=f"Absolute, or relative to {WORKSPACE}.", min_length=1)]


def file_tools(box: Sandbox | None) -> Sequence[Tool]:
    assert box is not None, "files need a slot"
    return [each.bind(box) for each in (read_file, write_file, patch, search_files)]


# ---- read and write -----------------------------------------------------------------------------------------------


# Its results are limited here and never written to a file: that file would have to be read with this tool.
@tool(bound=True, parallel=True, result_chars=2 * READ_CHARS)
async def read_file(
    box: Sandbox,
    path: Path,
    offset: Annotated[int, Meta(description="The first line to show, from 1.", ge=1)] = 1,
    limit: Annotated[int, Meta(description=f"How many lines to show, at most {READ_LINES}.", ge=1)] = READ_LINES,
) -> str:
    """Read a text file. Each line is shown with its number and a tab before it; these are not part of the file."""
    data = await _read_bytes(box, path)
    if b"\0" in data[:8192]:
        raise ValueError(f"{path} is a binary file of {len(data)} bytes; look at it with a program in the terminal")
    return number_lines(data.decode(errors="replace"), offset, min(limit, READ_LINES))


@tool(bound=True)
async def write_file(
    box: Sandbox, path: Path, content: Annotated[str, Meta(description="The whole new content of the file.")]
) -> str:
    """Create a file or replace all of its content. Missing folders are made. To change a part, use patch."""
    data = content.encode()
    await box.write(path, data)
    return f"Wrote {path}: {len(data)} bytes, {len(_split_lines(content))} lines."


async def _read_bytes(box: Sandbox, path: str) -> bytes:
    if "\0" in path:
        raise ValueError("a path cannot contain a NUL character")
    try:
        return await box.read(path, max_bytes=FILE_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist{await _suggest_paths(box, path)}") from None
    except IsADirectoryError:
        advice = "list it with search_files(target='files', pattern='*')"
        raise IsADirectoryError(f"{path} is a folder; {advice}") from None
    except PermissionError:
        raise PermissionError(f"{path} may not be read") from None
    except ValueError:
        advice = "look at parts of it with search_files or the terminal (head, tail, sed -n)"
        raise ValueError(f"{path} is larger than {FILE_BYTES // 1_000_000} MB; {advice}") from None


async def _suggest_paths(box: Sandbox, path: str) -> str:
    """Names in the folder that are similar to the missing one, as part of a message."""
    folder, name = posixpath.split(posixpath.join(WORKSPACE, path))
    listing = await box.exec("ls -A | head -n 500", cwd=folder, timeout=10)
    near = get_close_matches(name, listing.stdout.decode(errors="replace").splitlines(), n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def number_lines(text: str, offset: int, limit: int) -> str:
    """The lines from `offset` on, with their numbers, as many as fit."""
    lines = _split_lines(text)
    if not lines:
        return "[the file is empty]"
    if offset > len(lines):
        raise ValueError(f"offset {offset} is past the end; the file has {len(lines)} lines")
    rows: list[str] = []
    room = READ_CHARS
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        row = f"{number:6}\t{_cut_line(line, LINE_CHARS)}"
        room -= len(row) + 1
        if room < 0 and rows:
            break
        rows.append(row)
    last = offset + len(rows) - 1
    if last < len(lines):
        rows.append(f"[lines {offset} to {last} of {len(lines)}; go on with offset={last + 1}]")
    return "\n".join(rows)


def _split_lines(text: str) -> list[str]:
    """Lines as grep and sed count them: only a newline ends a line, and a last line without one counts."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _cut_line(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]} [... {len(line) - limit} more characters]"


# ---- patch --------------------------------------------------------------------------------------------------------


@tool(bound=True)
async def patch(
    box: Sandbox,
    path: Path,
    old: Annotated[str, Meta(description="The text to replace, without line numbers; it must occur only once.")],
    new: Annotated[str, Meta(description="What to put in its place; empty to delete it.")],
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False,
) -> str:
    """Replace a piece of text in a file. Give enough of the lines around it to make the place unique."""
    try:
        text = (await _read_bytes(box, path)).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; change it with a program in the terminal") from None
    done = patch_text(text, old, new, replace_all=replace_all)
    await box.write(path, done.text.encode())
    places = f"line {done.at[0]}" if len(done.at) == 1 else f"{len(done.at)} places, lines {_join_numbers(done.at)}"
    how = "exact match" if done.exact else "no exact match; matched ignoring whitespace, and indented to fit"
    return f"Patched {path} at {places} ({how})."


@dataclass(frozen=True)
class PatchResult:
    """A text after a patch, and where and how `old` was found."""

    text: str
    at: tuple[int, ...]
    """The first line of every place, from 1, in the text before the patch."""
    exact: bool


@dataclass(frozen=True)
class _Place:
    start: int
    end: int
    new: str


def patch_text(text: str, old: str, new: str, *, replace_all: bool = False) -> PatchResult:
    """Replace `old` by `new`. If there is no such place, or more than one, raises LookupError or ValueError with a
    message for the agent."""
    if not old:
        raise ValueError("patch: `old` is empty; to create or replace a whole file use write_file")
    if old == new:
        raise ValueError("patch: `old` and `new` are the same; nothing to do")
    newline = "\r\n" if "\r\n" in text and text.count("\n") == text.count("\r\n") else "\n"
    if newline == "\r\n":
        text, old, new = (part.replace("\r\n", "\n") for part in (text, old, new))
    exact = _find_exact_places(text, old, new)
    places = exact or _find_loose_places(text, old, new)
    at = tuple(text.count("\n", 0, place.start) + 1 for place in places)
    if not places:
        raise LookupError(f"patch: `old` does not occur in the file{_describe_nearest(text, old)}")
    if len(places) > 1 and not replace_all:
        raise ValueError(
            f"patch: `old` occurs {len(places)} times, at lines {_join_numbers(at)}; "
            "give more of the lines around it, or set replace_all"
        )
    parts: list[str] = []
    done = 0
    for place in places:
        parts += (text[done : place.start], place.new)
        done = place.end
    result = "".join((*parts, text[done:]))
    return PatchResult(result.replace("\n", newline) if newline != "\n" else result, at, bool(exact))


def _find_exact_places(text: str, old: str, new: str) -> list[_Place]:
    places: list[_Place] = []
    start = text.find(old)
    while start >= 0:
        places.append(_Place(start, start + len(old), new))
        start = text.find(old, start + len(old))
    return places


def _find_loose_places(text: str, old: str, new: str) -> list[_Place]:
    """Places of whole lines that differ from `old` only in whitespace, with `new` indented like them."""
    wanted = [_squeeze_line(line) for line in old.strip().split("\n")]
    if wanted == [""]:
        return []
    lines = text.split("\n")
    squeezed = [_squeeze_line(line) for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    places: list[_Place] = []
    index = 0
    while index <= len(lines) - len(wanted):
        after = index + len(wanted)
        if squeezed[index] != wanted[0] or squeezed[index:after] != wanted:
            index += 1
            continue
        fitted = _reindent(new, _get_indent(old.strip("\n")), _get_indent(lines[index]))
        # Without new text, the newline after the lines is removed, too.
        end = min(starts[after] - (1 if fitted else 0), len(text))
        places.append(_Place(starts[index], end, fitted))
        index = after
    return places


def _squeeze_line(line: str) -> str:
    return " ".join(line.split())


def _get_indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]


def _reindent(new: str, written: str, wanted: str) -> str:
    """`new` with the indentation of the place (`wanted`) instead of its own (`written`)."""
    if not new.strip():
        return ""
    lines = new.strip("\n").split("\n")
    return "\n".join(
        wanted + line[len(written) :] if line.strip() and line.startswith(written) else line for line in lines
    )


def _describe_nearest(text: str, old: str) -> str:
    """The lines most similar to the first line of `old`. Only the first lines of the text are compared: it is slow."""
    first = old.strip().split("\n")[0].strip()
    lines = [line.strip()[:200] for line in text.split("\n")[:READ_LINES]]
    near = get_close_matches(first[:200], dict.fromkeys(lines), n=3)
    if not near:
        return "; read the file to see what is there"
    return "; the nearest lines are:\n" + "\n".join(f"{lines.index(line) + 1:6}\t{line}" for line in near)


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers[:10]) + (", …" if len(numbers) > 10 else "")


# ---- search -------------------------------------------------------------------------------------------------------


@tool(bound=True, parallel=True)
async def search_files(
    box: Sandbox,
    pattern: Annotated[str, Meta(description="content: a regular expression. files: a name, or a glob such as *.py.")],
    path: Annotated[str, Meta(description="The file or folder to search.", min_length=1)] = ".",
    target: Annotated[
        Literal["content", "files"], Meta(description="Search in the lines of files, or for names of files.")
    ] = "content",
    glob: Annotated[str | None, Meta(description="Only files whose name fits, e.g. *.py.")] = None,
    limit: Annotated[int, Meta(description="How many matches to show.", ge=1)] = 50,
) -> str:
    """Find lines in files by a regular expression, or files by name. Prefer it to grep and find in the terminal."""
    limit = min(limit, MATCHES)
    command = _make_line_search(pattern, path, glob) if target == "content" else _make_name_search(pattern, path, glob)
    # One more line than asked for shows whether there are more. `cut` is for files that are one long line.
    result = await box.exec(f"({command}) | cut -b 1-2000 | head -n {limit + 1}", cwd=WORKSPACE, timeout=SEARCH_SECONDS)
    found = [_cut_line(line.removeprefix("./"), 500) for line in _split_lines(clean_output(result.stdout))]
    if not found and result.timed_out:
        raise TimeoutError(f"search_files: nothing found in {SEARCH_SECONDS:g} s; search a smaller folder")
    if not found and result.stderr.strip():
        raise ValueError(f"search_files: {' '.join(clean_output(result.stderr).split())[:300]}")
    if len(found) > limit:
        found[limit:] = [f"[there are more than {limit} matches; narrow the search or raise limit]"]
    if result.timed_out:
        found.append(f"[stopped after {SEARCH_SECONDS:g} s; there may be more]")
    return "\n".join(found) or "No matches."


def _make_line_search(pattern: str, path: str, glob: str | None) -> str:
    """A command that prints file:line:text of every matching line, in the order of the paths."""
    q, where = shlex.quote(pattern), _quote_path(path)
    globs = f"--glob {shlex.quote(glob)} --glob '!.git'" if glob else "--glob '!.git'"
    ripgrep = (
        f"rg --no-config --color never --no-heading -nH --sort path --hidden --no-ignore {globs} -e {q} -- {where}"
    )
    # Perl's dialect is the closest to ripgrep's. A grep without it uses the extended dialect.
    grep = (
        "kind=P; printf x | grep -qP x 2>/dev/null || kind=E; "
        f"{_make_find(path, glob)} -print0 | LC_ALL=C sort -z | xargs -0 -r grep -nHI$kind -e {q} --"
    )
    return f"if command -v rg >/dev/null; then {ripgrep}; else {grep}; fi"


def _make_name_search(pattern: str, path: str, glob: str | None) -> str:
    wildcard = any(char in pattern for char in "*?[")
    return f"{_make_find(path, pattern if wildcard else f'*{pattern}*', glob)} -print | LC_ALL=C sort"


def _make_find(path: str, *globs: str | None) -> str:
    """The beginning of a find command for files that match all globs. A glob with a slash is for the whole path."""
    tests = [
        f"-path {shlex.quote('*/' + glob.replace('**/', '*').lstrip('/'))}"
        if "/" in glob
        else f"-name {shlex.quote(glob)}"
        for glob in globs
        if glob
    ]
    return " ".join(("find -H", _quote_path(path), "-name .git -prune -o -type f", *tests))


def _quote_path(path: str) -> str:
    """A path relative to the workspace, quoted, that no command reads as an option."""
    if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
        path = posixpath.relpath(path, WORKSPACE)
    path = re.sub(r"^(\./+)+", "", path) or "."
    return shlex.quote(path if path == "." or path.startswith("/") else f"./{path}")
