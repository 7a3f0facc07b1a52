"""What secrets look like. The kinds that are planted into sessions are in tests/transcripts/test_masking.py."""

import pytest

from ludus.secret_forms import begins, find_named, find_secrets, is_secret_value, looks_random, name_secret


def find(text: str) -> list[str]:
    return [text[span.start : span.end] for span in find_secrets(text)]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("DB_PASSWORD=hunter2!", "hunter2!"),
        ("db_password: hunter2!", "hunter2!"),
        ('password = "letmein"', "letmein"),
        ('{\\"password\\": \\"a b\\\\c9\\"}', ""),
        ("password is hunter2.", "hunter2."),
        ("login app password hunter2", "hunter2"),
        ("machine x login app\n  password s3cr3t", "s3cr3t"),
        ("mysql -h db -ps3cr3t app", "s3cr3t"),
        ("https://ghx_a1b2c3d4e5f6g7h8@github.com/x", "ghx_a1b2c3d4e5f6g7h8"),
        ("x=1&sig=a1b2c3d4e5f6g7h8i9 https://x/?sig=a1b2c3d4e5f6g7h8i9", "a1b2c3d4e5f6g7h8i9"),
    ],
)
def test_a_password_is_told_by_its_place(text: str, secret: str):
    assert secret in find(text) or not secret


@pytest.mark.parametrize("name", ["DB_PASSWORD", "apiKey", "client_secret", "--auth-token", "AWS_SECRET_ACCESS_KEY"])
def test_a_field_tells_what_its_value_is(name: str):
    assert is_secret_value(name, "a1b2c3d4e5f6")
    assert not is_secret_value(name, "$A_VARIABLE")
    assert not is_secret_value("title", "a1b2c3d4e5f6")


def test_names_that_only_mention_a_secret_have_plain_values():
    for name in ("api_key_var", "TOKEN_FILE", "max_tokens", "password_field", "secret_name", "PWD"):
        assert not is_secret_value(name, "a1b2c3d4e5f6"), name


def test_kinds_are_told_by_the_name():
    assert [name_secret(name) for name in ("DB_PASS", "api_key", "token", "client_secret")] == [
        "PASSWORD",
        "KEY",
        "TOKEN",
        "SECRET",
    ]


def test_a_private_key_that_was_cut_off_ends_with_its_last_line():
    lines = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA7bq3", "x" * 64]
    text = "\n".join([*lines, "and then words of a text"])
    assert find(text)[0] == "\n".join(lines)


def test_values_begin_after_no_letter_or_after_an_escape():
    assert [begins(text, 1) for text in ("ab", "_b", " b", "/b")] == [False, False, True, True]
    assert begins("\\nb", 2)
    assert not begins("\\nb", 1)
    assert begins("nb", 0)


def test_words_are_not_random():
    assert [looks_random(text) for text in ("correct-horse-battery", "some.module.path", "a1b2c3d4", "12345678")] == [
        False,
        False,
        True,
        False,
    ]
    assert list(find_named("passed = 'all', passage: 3, tokenizer Qwen3, compass: N0rth!!")) == []
