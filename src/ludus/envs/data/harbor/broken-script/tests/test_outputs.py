import subprocess


def greet(*arguments):
    return subprocess.run(["/app/greet.sh", *arguments], capture_output=True, text=True, timeout=20).stdout


def test_with_a_name():
    assert greet("Ada") == "Hello, Ada!\n"


def test_without_a_name():
    assert greet() == "Hello, stranger!\n"
