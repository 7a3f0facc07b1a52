import pytest

from ludus.sandbox.dockerfile import (
    PATH,
    CopyStep,
    FolderStep,
    NeedsEngine,
    RunStep,
    WriteStep,
    flatten_documents,
    is_ignored,
    read_definition,
    read_dockerfile,
)


def read(*lines: str) -> list[object]:
    return list(read_dockerfile("\n".join(("FROM debian:12", *lines))).steps)


def read_commands(*lines: str) -> list[tuple[str, ...]]:
    return [step.command for step in read(*lines) if isinstance(step, RunStep)]


def test_bases_with_a_working_folder():
    recipe = read_dockerfile("FROM example/t-bench/python-3-13:1\nCOPY a .\n")
    assert (recipe.folder, recipe.steps[0]) == ("/app", FolderStep("/app", 1))
    assert read_dockerfile("FROM python:3.13\n").folder == "/"


def test_variables_folder_and_user_are_filled_in():
    recipe = read_dockerfile(
        'ARG V=3.11\nFROM python:${V}-slim AS main\nENV A=1 B="two words" PATH=/opt/bin:$PATH\nENV OLD some value\n'
        "ARG TARGET=app\nWORKDIR /srv\nWORKDIR $TARGET\nUSER user:group\nRUN make\nCMD x\nEXPOSE 80"
    )
    assert recipe.base == "python:3.11-slim"
    assert dict(recipe.env) == {"A": "1", "B": "two words", "OLD": "some value", "PATH": f"/opt/bin:{PATH}"}
    assert (recipe.folder, recipe.user) == ("/srv/app", "user")
    *folders, run = recipe.steps
    assert [step.path for step in folders if isinstance(step, FolderStep)] == ["/srv", "/srv/app"]
    assert isinstance(run, RunStep)
    assert run.folder == "/srv/app"
    assert dict(run.env)["TARGET"] == "app"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A", "1"),
        ("${A}x", "1x"),
        ("${NONE:-other}", "other"),
        ("${A:-other}", "1"),
        ("${A:+set}", "set"),
        ("${NONE:+set}", ""),
        ("\\$A", "$A"),
    ],
)
def test_values_of_variables(text: str, value: str):
    assert dict(read_dockerfile(f"FROM debian\nENV A=1\nENV B={text}").env)["B"] == value


def test_lines_continue_over_comments_and_empty_lines():
    commands = read_commands("RUN apt-get update && \\", "    # a comment", "", "    apt-get install -y \\", "  git")
    assert commands == [("/bin/sh", "-c", "apt-get update &&     apt-get install -y   git")]


def test_here_documents():
    assert read_commands("RUN <<EOF", "echo 1", "echo 2", "EOF", "RUN true") == [
        ("/bin/sh", "-c", "echo 1\necho 2\n"),
        ("/bin/sh", "-c", "true"),
    ]
    assert read_commands("RUN cat <<'X' >/f && echo ok", "a $b", "X") == [
        ("/bin/sh", "-c", "cat <<'X' >/f && echo ok\na $b\nX\n")
    ]
    (script,) = read_commands("RUN <<EOF", "#!/usr/bin/env python3", "print(1)", "EOF")
    assert script[0] == "/bin/bash"
    assert "print(1)" in script[2]


def test_the_forms_of_run():
    assert read_commands('RUN ["echo", "a b"]') == [("echo", "a b")]
    assert read_commands('SHELL ["/bin/bash", "-ec"]', "RUN x") == [("/bin/bash", "-ec", "x")]
    assert read_commands("RUN --mount=type=cache,target=/root/.cache pip install x") == [
        ("/bin/sh", "-c", "pip install x")
    ]


def test_copies():
    steps = read("WORKDIR /app", "COPY --chmod=755 --chown=1:1 a.sh b.sh bin/", "ADD . .", 'COPY ["a b", "/c d"]')[1:]
    assert steps == [
        CopyStep(("a.sh", "b.sh"), "/app/bin/", 0o755, 3),
        CopyStep((".",), "/app/", None, 4),
        CopyStep(("a b",), "/c d", None, 5),
    ]
    assert read("ENV A=1", "COPY <<EOF /etc/x", "v=$A", "EOF") == [WriteStep("/etc/x", "v=1\n", None, 3)]
    assert read("ENV A=1", "COPY <<'EOF' /etc/", "v=$A", "EOF") == [WriteStep("/etc/EOF", "v=$A\n", None, 3)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["FROM debian AS b", "RUN x"], "line 2: it has several stages"),
        (["COPY --from=b /x /y"], "line 2: COPY --from=b"),
        (["ADD https://x.example/a /a"], "ADD of an address"),
        (["ADD a.tar.gz /a"], "ADD of an archive"),
        (["COPY ../secret /a"], "outside the folder"),
        (["RUN --mount=type=secret,id=x cat"], "RUN --mount=type=secret"),
        (["ONBUILD RUN x"], "ONBUILD cannot be replayed"),
        (["RUN <<EOF", "x"], "the here-document EOF has no end"),
        (["RUN [1]"], "a list that is not JSON"),
        (["COPY x"], "needs sources and a target"),
        (["FOO x"], "line 2: FOO cannot be replayed"),
    ],
)
def test_what_needs_an_engine(lines: list[str], reason: str):
    with pytest.raises(NeedsEngine) as caught:
        read(*lines)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "RUN x\nFROM debian", "FROM scratch", "# escape=`\nFROM debian"])
def test_what_has_no_base(text: str):
    with pytest.raises(NeedsEngine):
        read_dockerfile(text)


def test_an_apptainer_definition():
    recipe = read_definition(
        "Bootstrap: localimage\nFrom: ./ubuntu_22.04.sif\n\n%files\n  data /srv/data\n%post\n    mkdir -p /home/user\n"
        "    echo hi >/home/user/x\n\n%environment\n    # none\n    export A='two words'\n%runscript\n    exec bash\n"
    )
    assert (recipe.base, recipe.folder) == ("ubuntu:22.04", "/home/user")
    assert dict(recipe.env) == {"PATH": PATH, "A": "two words"}
    copy, run = recipe.steps
    assert copy == CopyStep(("data",), "/srv/data", None, 0)
    assert isinstance(run, RunStep)
    assert run.command == ("/bin/sh", "-ec", "mkdir -p /home/user\n    echo hi >/home/user/x")
    assert read_definition("Bootstrap: docker\nFrom: debian:12\n").base == "debian:12"
    for text in ("", "Bootstrap: yum\nFrom: x", "Bootstrap: docker\nFrom: x\nFrom: y"):
        with pytest.raises(NeedsEngine):
            read_definition(text)


@pytest.mark.parametrize(
    ("path", "ignored"),
    [("a.pyc", True), ("x/a.pyc", True), ("keep.pyc", False), ("build/x", True), ("src/a.py", False)],
)
def test_dockerignore(path: str, ignored: bool):
    assert is_ignored(path, ["# comment", "**/*.pyc", "build/", "", "!keep.pyc"]) is ignored


def test_here_documents_become_commands_for_engines_that_do_not_know_them():
    text = """\
# a comment
FROM x AS one
RUN echo plain \\
    && true
RUN --mount=type=cache,target=/c cat <<EOF >/a && echo $B
a "line" of $C
EOF
COPY --chmod=600 <<'ONE' <<TWO b.txt /etc/
$kept
ONE
$D `date` $(date)
TWO
SHELL ["/bin/bash", "-c"]
RUN <<-END
\techo 1
\tEND
FROM y
RUN <<END
#!/usr/bin/python3
print(1)
END
ENV A=b
"""
    flat = flatten_documents(text)
    assert flat.splitlines() == [
        "# a comment",
        "FROM x AS one",
        "RUN echo plain \\",
        "    && true",
        'RUN --mount=type=cache,target=/c ["/bin/sh","-c","cat <<EOF >/a && echo $B\\na \\"line\\" of $C\\nEOF\\n"]',
        "COPY --chmod=600 b.txt /etc/",
        'RUN ["/bin/sh","-c","set -e\\nmkdir -p \\"$(dirname \\"/etc/ONE\\")\\"\\n'
        'cat >\\"/etc/ONE\\" <<\'LUDUS_SCRIPT_END\'\\n$kept\\nLUDUS_SCRIPT_END\\nchmod 600 \\"/etc/ONE\\""]',
        'RUN ["/bin/sh","-c","set -e\\nmkdir -p \\"$(dirname \\"/etc/TWO\\")\\"\\n'
        'cat >\\"/etc/TWO\\" <<LUDUS_SCRIPT_END\\n$D \\\\`date\\\\` \\\\$(date)\\nLUDUS_SCRIPT_END\\n'
        'chmod 600 \\"/etc/TWO\\""]',
        'SHELL ["/bin/bash", "-c"]',
        'RUN ["/bin/bash","-c","echo 1\\n"]',
        "FROM y",
        flat.splitlines()[-2],
        "ENV A=b",
    ]
    assert flat.splitlines()[-2].startswith('RUN ["/bin/bash","-c","s=$(mktemp)')
    assert flatten_documents("FROM x\nRUN echo\n") == "FROM x\nRUN echo\n"
