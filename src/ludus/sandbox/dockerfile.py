"""Reads a Dockerfile, or an Apptainer definition, as steps that can be replayed in a slot, without a container engine.

`read_dockerfile` is a pure function from the text to a `Recipe`: the base, the steps with their variables, folder and
user already filled in, and what the finished image has. Line continuations, comments inside them, here-documents,
build arguments and `.dockerignore` mean what they mean to an engine. `CMD`, `ENTRYPOINT`, `EXPOSE` and the like say
nothing about files and are passed over.

What needs an engine raises `NeedsEngine`, with the line: several stages, `COPY --from`, `ADD` of an address or an
archive, mounts with secrets, `ONBUILD`. Owners are not kept: everything in a slot belongs to its one user.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = ("/bin/sh", "-c")
_PASSED_OVER = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "HEALTHCHECK", "STOPSIGNAL")
_HEREDOC = re.compile(r"(?<!<)<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
_WORD = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|((?:[^\s\"'\\]|\\.)+)")
_MARK = "LUDUS_SCRIPT_END"
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


class NeedsEngine(Exception):
    """A Dockerfile cannot be replayed. The message says what in it is the reason."""


class RunStep(Struct, frozen=True, tag="run"):
    """A command."""

    command: tuple[str, ...]
    """The program and its arguments; the last one is the script if it is a shell."""
    env: tuple[tuple[str, str], ...]
    folder: str
    line: int


class CopyStep(Struct, frozen=True, tag="copy"):
    """Files of the context that are copied into the image."""

    sources: tuple[str, ...]
    """Paths or patterns below the context."""
    target: str
    """An absolute path. With a slash at its end it is a folder."""
    mode: int | None
    line: int


class WriteStep(Struct, frozen=True, tag="write"):
    """A file whose content is in the Dockerfile."""

    path: str
    text: str
    mode: int | None
    line: int


class FolderStep(Struct, frozen=True, tag="folder"):
    """A folder that is made if it is not there."""

    path: str
    line: int


Step = RunStep | CopyStep | WriteStep | FolderStep


class Recipe(Struct, frozen=True):
    """What a Dockerfile says."""

    base: str
    """The name after `FROM`."""
    steps: tuple[Step, ...]
    env: tuple[tuple[str, str], ...]
    """The variables of programs that run in the image."""
    folder: str
    """The folder in which they start."""
    user: str
    """The name of their user; empty for root."""


class _Instruction(Struct, frozen=True):
    name: str
    rest: str
    line: int
    documents: tuple[tuple[str, str], ...] = ()
    """Here-documents: their words and texts."""
    block: str = ""
    """The here-documents as they are in the file, with the lines that end them."""
    quoted: bool = False
    """Whether the word of the first here-document is quoted: then variables in it are kept."""
    end: int = 0
    """The number of its last line, the end of its here-documents included."""


@dataclass(frozen=True)
class _State:
    """What the steps so far have set."""

    env: Mapping[str, str]
    arguments: Mapping[str, str]
    folder: str = "/"
    user: str = ""
    shell: tuple[str, ...] = _SHELL

    @property
    def known(self) -> Mapping[str, str]:
        return {**self.arguments, **self.env}


def read_dockerfile(text: str) -> Recipe:
    """The steps of a Dockerfile.

    Raises:
        NeedsEngine: a step cannot be replayed, or is no instruction.
    """
    instructions = list(_split_instructions(text))
    starts = [each for each in instructions if each.name == "FROM"]
    if not starts:
        raise NeedsEngine("it has no FROM")
    if len(starts) > 1:
        raise NeedsEngine(f"line {starts[1].line}: it has several stages (FROM)")
    first = instructions.index(starts[0])
    state = _State({"PATH": PATH}, {})
    for each in instructions[:first]:
        if each.name != "ARG":
            raise NeedsEngine(f"line {each.line}: {each.name} before FROM")
        state = _set_arguments(state, each)
    base = _read_base(starts[0], state)
    folder = _find_base_folder(base)
    state = replace(state, arguments={}, folder=folder)
    steps: list[Step] = [FolderStep(folder, starts[0].line)] if folder != "/" else []
    for each in instructions[first + 1 :]:
        state, made = _read_step(state, each)
        steps += made
    return Recipe(base, tuple(steps), tuple(state.env.items()), state.folder, state.user)


def _read_base(start: _Instruction, state: _State) -> str:
    words = [word for word in _expand(start.rest, state.known).split() if not word.startswith("--")]
    if not words or words[0] == "scratch":
        raise NeedsEngine(f"line {start.line}: FROM {' '.join(words) or 'nothing'}")
    return words[0]


def _find_base_folder(base: str) -> str:
    """The working folder that a base sets. Debian's, Ubuntu's and Python's set none, Terminal-Bench's /app."""
    return "/app" if "/t-bench/" in f"/{base}" else "/"


def _read_step(state: _State, each: _Instruction) -> tuple[_State, list[Step]]:
    match each.name:
        case "ARG":
            return _set_arguments(state, each), []
        case "ENV":
            return replace(state, env={**state.env, **_read_env(each, state)}), []
        case "WORKDIR":
            folder = posixpath.normpath(posixpath.join(state.folder, _unquote(_expand(each.rest, state.known))))
            return replace(state, folder=folder), [FolderStep(folder, each.line)]
        case "USER":
            return replace(state, user=_expand(each.rest, state.known).partition(":")[0].strip()), []
        case "SHELL":
            return replace(state, shell=_read_words(each)), []
        case "RUN":
            return state, [_read_run(state, each)]
        case "COPY" | "ADD":
            return state, list(_read_copy(state, each))
        case "VOLUME":
            paths = _read_words(each) if each.rest.startswith("[") else each.rest.split()
            return state, [FolderStep(path, each.line) for path in paths]
        case name if name in _PASSED_OVER:
            return state, []
        case name:
            raise NeedsEngine(f"line {each.line}: {name} cannot be replayed")


# ---- single instructions ------------------------------------------------------------------------------------------


def _read_run(state: _State, each: _Instruction) -> RunStep:
    flags, rest = _split_flags(each.rest)
    for flag in flags:
        if not flag.startswith(("--mount=type=cache", "--network=default", "--mount=type=tmpfs")):
            raise NeedsEngine(f"line {each.line}: RUN {flag.partition(',')[0]}")
    command = _read_words(each, rest) if rest.startswith("[") else _join_command(each, rest, state.shell)
    variables = {**state.arguments, **state.env}
    return RunStep(command, tuple(variables.items()), state.folder, each.line)


def _join_command(each: _Instruction, rest: str, shell: Sequence[str]) -> tuple[str, ...]:
    """The program and arguments of a `RUN` that is a script, with its here-documents."""
    if each.documents and _HEREDOC.fullmatch(rest.strip()):
        script = each.documents[0][1]
        return ("/bin/bash", "-c", _run_script(script)) if script.startswith("#!") else (*shell, script)
    return (*shell, f"{rest}\n{each.block}" if each.block else rest)


def _run_script(script: str) -> str:
    """Shell code that runs a script by its first line."""
    mark, text = _MARK, script.rstrip("\n")
    run = 'chmod +x "$s"; "$s"; r=$?; rm -f "$s"; exit $r'
    return f"s=$(mktemp); cat >\"$s\" <<'{mark}'\n{text}\n{mark}\n{run}"


def _read_copy(state: _State, each: _Instruction) -> Iterator[Step]:
    flags, rest = _split_flags(each.rest)
    mode = None
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
            mode = int(value, 8) & 0o777
        elif name not in ("--chown", "--link"):
            raise NeedsEngine(f"line {each.line}: {each.name} {flag}")
    words = _read_words(each, rest) if rest.startswith("[") else tuple(_split_words(_expand(rest, state.known)))
    if len(words) < 2:
        raise NeedsEngine(f"line {each.line}: {each.name} needs sources and a target")
    *sources, target = words
    documents = dict(each.documents)
    is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    place = posixpath.normpath(posixpath.join(state.folder, target))
    plain: list[str] = []
    for source in sources:
        if heredoc := _HEREDOC.fullmatch(source):
            text = documents[heredoc[3]]
            text = text if each.quoted else _expand(text, state.known)
            yield WriteStep(posixpath.join(place, heredoc[3]) if is_folder else place, text, mode, each.line)
        elif "://" in source or source.startswith("git@"):
            raise NeedsEngine(f"line {each.line}: {each.name} of an address")
        elif each.name == "ADD" and source.endswith(_ARCHIVES):
            raise NeedsEngine(f"line {each.line}: ADD of an archive")
        else:
            plain.append(posixpath.normpath(source.lstrip("/")) if source.strip("/") else ".")
    if any(source.startswith("../") or source == ".." for source in plain):
        raise NeedsEngine(f"line {each.line}: {each.name} of a file outside the folder of the Dockerfile")
    if plain:
        yield CopyStep(tuple(plain), f"{place.rstrip('/')}/" if is_folder else place, mode, each.line)


def _set_arguments(state: _State, each: _Instruction) -> _State:
    found = dict(state.arguments)
    for word in _split_words(_expand(each.rest, state.known)):
        name, has_value, value = word.partition("=")
        if has_value:
            found[name] = value
    return replace(state, arguments=found)


def _read_env(each: _Instruction, state: _State) -> dict[str, str]:
    first = each.rest.split(None, 1)[0] if each.rest.strip() else ""
    if "=" not in first:  # the old form: one name and the rest of the line
        name, _, value = each.rest.partition(" ")
        return {name: _expand(value.strip(), state.known)} if name else {}
    words = [word.partition("=") for word in _split_words(_expand(each.rest, state.known))]
    if any(not name.isidentifier() for name, _, _ in words):
        raise NeedsEngine(f"line {each.line}: ENV {each.rest[:60]} is not NAME=VALUE")
    return {name: value for name, _, value in words}


def _read_words(each: _Instruction, text: str | None = None) -> tuple[str, ...]:
    """A list of words in JSON."""
    try:
        return msgspec.json.decode(each.rest if text is None else text, type=tuple[str, ...])
    except msgspec.DecodeError:
        raise NeedsEngine(f"line {each.line}: {each.name} has a list that is not JSON") from None


def _split_flags(rest: str) -> tuple[list[str], str]:
    flags: list[str] = []
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        flags.append(flag)
        rest = rest.lstrip()
    return flags, rest


def _split_words(text: str) -> Iterator[str]:
    """Words as in an `ENV` or `COPY` line: quotes and backslashes group, and words may have quoted parts."""
    word, inside = "", False
    position = 0
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            if text[position].isspace():
                if inside:
                    yield word
                word, inside = "", False
            else:
                word, inside = word + text[position], True
            position += 1
            continue
        double, single, plain = match.groups()
        part = single if single is not None else re.sub(r"\\(.)", r"\1", double if double is not None else plain)
        word, inside = word + part, True
        position = match.end()
    if inside:
        yield word


def _unquote(text: str) -> str:
    return next(iter(_split_words(text)), "/") if text.startswith(("'", '"')) else text.strip()


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace variables. Single quotes do not protect here; a backslash does."""

    def fill(match: re.Match[str]) -> str:
        escaped, plain, braced, operator, word = match.groups()
        if escaped is not None:
            return "$" if escaped == "$" else match[0]
        value = known.get(plain or braced, "")
        if operator and operator.endswith("-"):
            return value or _expand(word, known)
        if operator and operator.endswith("+"):
            return _expand(word, known) if value else ""
        return value

    return _VARIABLE.sub(fill, text)


# ---- for engines --------------------------------------------------------------------------------------------------


def flatten_documents(text: str) -> str:
    """A Dockerfile without here-documents, which older builders do not know. Each becomes a `RUN` that means the same.

    Raises:
        NeedsEngine: its lines cannot be read.
    """
    lines, made, position, shell = text.replace("\r\n", "\n").split("\n"), list[str](), 0, _SHELL
    for each in _split_instructions(text):
        if each.name in ("FROM", "SHELL"):
            shell = _read_words(each) if each.name == "SHELL" else _SHELL
        if not each.documents:
            continue
        flags, rest = _split_flags(each.rest)
        made += lines[position : each.line - 1]
        if each.name == "RUN":
            made.append(" ".join(("RUN", *flags, _format_words(_join_command(each, rest, shell)))))
        else:
            made += _flatten_copy(each, flags, rest)
        position = each.end
    return "\n".join([*made, *lines[position:]])


def _flatten_copy(each: _Instruction, flags: Sequence[str], rest: str) -> Iterator[str]:
    *sources, target = rest.split()
    documents = dict(each.documents)
    plain = [source for source in sources if not _HEREDOC.fullmatch(source)]
    is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    if plain:
        yield " ".join((each.name, *flags, *plain, target if len(sources) == 1 else f"{target.rstrip('/')}/"))
    options = dict(flag.removeprefix("--").split("=", 1) for flag in flags if "=" in flag)
    for heredoc in filter(None, map(_HEREDOC.fullmatch, sources)):
        path = f'"{target.rstrip("/")}/{heredoc[3]}"' if is_folder else f'"{target}"'
        content = documents[heredoc[3]]
        if not heredoc[2]:  # an engine fills in variables, and runs nothing
            content = content.replace("`", "\\`").replace("$(", "\\$(")
        mark = f"'{_MARK}'" if heredoc[2] else _MARK
        steps = ["set -e", f'mkdir -p "$(dirname {path})"', f"cat >{path} <<{mark}\n{content}{_MARK}"]
        steps += [f"{name} {options[name]} {path}" for name in ("chmod", "chown") if name in options]
        script = "\n".join(steps)
        yield f"RUN {_format_words((*_SHELL, script))}"


def _format_words(words: Sequence[str]) -> str:
    return msgspec.json.encode(words).decode()


# ---- lines --------------------------------------------------------------------------------------------------------


def _split_instructions(text: str) -> Iterator[_Instruction]:
    lines = text.replace("\r\n", "\n").split("\n")
    if re.match(r"#\s*escape\s*=\s*`", lines[0]):
        raise NeedsEngine("line 1: it has another escape character")
    position = 0
    while position < len(lines):
        start, position, joined = position + 1, *_join_line(lines, position)
        if not joined:
            continue
        name, _, rest = joined.partition(" ")
        instruction = _Instruction(name.upper(), rest.strip(), start)
        if instruction.name in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
            instruction, position = _read_documents(instruction, lines, position)
        yield instruction


def _join_line(lines: Sequence[str], position: int) -> tuple[int, str]:
    """A line with those that continue it, without comments. Returns the position after it, and the text."""
    parts: list[str] = []
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.strip().startswith("#") or (parts and not line.strip()):
            if parts:
                continue
            return position, ""
        stripped = line.rstrip()
        continues = stripped.endswith("\\")
        parts.append(stripped[:-1] if continues else line)
        if not continues:
            break
    return position, re.sub(r"^(\S+)\s+", r"\1 ", "".join(parts).strip())


def _read_documents(each: _Instruction, lines: Sequence[str], position: int) -> tuple[_Instruction, int]:
    documents: list[tuple[str, str]] = []
    start = position
    found = list(_HEREDOC.finditer(each.rest))
    for match in found:
        body: list[str] = []
        while position < len(lines):
            line = lines[position].lstrip("\t") if match[1] else lines[position]
            position += 1
            if line == match[3]:
                break
            body.append(line)
        else:
            raise NeedsEngine(f"line {each.line}: the here-document {match[3]} has no end")
        documents.append((match[3], "".join(f"{line}\n" for line in body)))
    block = "".join(f"{line}\n" for line in lines[start:position])
    quoted = bool(found[0][2])
    return _Instruction(each.name, each.rest, each.line, tuple(documents), block, quoted, position), position


# ---- Apptainer ----------------------------------------------------------------------------------------------------


def read_definition(text: str) -> Recipe:
    """The steps of an Apptainer definition file: `From`, and the sections `%post`, `%environment` and `%files`.

    Raises:
        NeedsEngine: it has no base, or more than one stage.
    """
    head, sections = _split_sections(text)
    base = head.get("from", "")
    if not base or head.get("bootstrap", "") not in ("docker", "localimage", "library"):
        raise NeedsEngine("it has no 'Bootstrap: docker' or 'localimage' with a 'From'")
    name = base.rpartition("/")[2].removesuffix(".sif").replace("_", ":") if base.endswith(".sif") else base
    exports = [line.strip().removeprefix("export ") for line in sections.get("environment", "").splitlines()]
    env = {"PATH": PATH}
    for word in (word for line in exports if "=" in line and not line.startswith("#") for word in _split_words(line)):
        key, _, value = word.partition("=")
        env[key] = _expand(value, env)
    steps: list[Step] = []
    for line in sections.get("files", "").splitlines():
        words = list(_split_words(line))
        if words:
            target = words[-1] if len(words) > 1 else f"/{words[0]}"
            steps.append(CopyStep((posixpath.normpath(words[0]),), target, None, 0))
    if script := sections.get("post", "").strip():
        steps.append(RunStep(("/bin/sh", "-ec", script), tuple(env.items()), "/", 0))
    return Recipe(name, tuple(steps), tuple(env.items()), "/home/user", "")


def _split_sections(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The head of a definition file by lower-case key, and its sections by name."""
    head: dict[str, str] = {}
    sections: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if match := re.match(r"%(\w+)", line):
            section = match[1]
        elif section:
            sections[section] = sections.get(section, "") + line + "\n"
        elif ":" in line and not line.startswith("#"):
            key, _, value = line.partition(":")
            if key.strip().lower() in head:
                raise NeedsEngine("it has several stages")
            head[key.strip().lower()] = value.strip()
    return head, sections


# ---- .dockerignore ------------------------------------------------------------------------------------------------


def is_ignored(path: str, patterns: Sequence[str]) -> bool:
    """Whether `.dockerignore` leaves a path out. The last pattern that matches it, or one of its folders, decides."""
    parents = [path, *(path[: match.start()] for match in re.finditer("/", path))]
    ignored = False
    for line in patterns:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        name = pattern.lstrip("!").strip("/").removeprefix("./")
        choices = (name, name.removeprefix("**/"))
        if any(fnmatchcase(parent, choice) for parent in parents for choice in choices):
            ignored = not pattern.startswith("!")
    return ignored
