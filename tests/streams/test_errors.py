"""Secrets of addresses in texts."""

import pytest

from streams.errors import UserError, fault, masked, masked_values

UNCHANGED = (
    "http://127.0.0.1:5000",
    "sqlite:///results/mlflow.db?timeout=60",
    "s3://bucket/results?region=eu-west-1",
    "mail me@example.org about seeds 0, 1",
    "file:///tmp/a b",
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:pw@127.0.0.1:5000", "http://***@127.0.0.1:5000"),
        ("postgresql+psycopg2://u:p@w/x@host/db", "postgresql+psycopg2://***@host/db"),
        ("https://token@host", "https://***@host"),
        ("s3://key:se/cret@bucket/x?region=eu", "s3://***@bucket/x?region=eu"),
        ("ray://:token@head:10001", "ray://***@head:10001"),
        ("'tracking.uri=mysql://u:pw@h/d' and s3://k:s@b", "'tracking.uri=mysql://***@h/d' and s3://***@b"),
        ("s3://b?access_key=A&secret_key=B&region=C", "s3://b?access_key=***&secret_key=***&region=C"),
        ("https://h/x?X-Amz-Signature=A&sslpassword=B", "https://h/x?X-Amz-Signature=***&sslpassword=***"),
        *((text, text) for text in UNCHANGED),
    ],
)
def test_masked_hides_users_keys_and_tokens_and_nothing_else(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_masked_hides_what_a_library_quotes_of_an_address() -> None:
    assert masked("nonnumeric port: 'p@w'", "http://u:p%40w@host") == "nonnumeric port: '***'"
    assert masked("cannot log in at host", "http://host") == "cannot log in at host"


def test_nested_values_and_faults_are_masked() -> None:
    assert masked_values({"a": ["s3://k:s@b", 1], "b": None}) == {"a": ["s3://***@b", 1], "b": None}
    assert fault("storage", "must exist", "s3://k:s@b") == "storage: must exist (got s3://***@b)"
    error = UserError("RAY_ADDRESS: no (got ray://t@h)")
    assert str(error) == "RAY_ADDRESS: no (got ray://***@h)" and error.args == error.faults
