"""Where a journal is: what `Settings(journal=...)` takes, and that no password of it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Settings, UsageError
from callboard.actors.journal.places import shown_place
from callboard.actors.secret_files import SecretFiles


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("sqlite:///x.db", "must be a path or postgresql://..., not an address of sqlite://"),
        ("mysql://h/db", "must be a path or postgresql://..."),
        ("{PID}.db", "its path has {PID} in it, and only {pid} is known there"),
        ("a/{pid}/x.db", "{pid} must be in the name of the file"),
        ("{pid}-{pid}.db", "{pid} must be in its name once"),
        (":memory:", "a journal in memory keeps nothing; name a file"),
        ("x/", "its path ends with a slash"),
        ("a\0b", "cannot be that of a file"),
        (5, "must be a path or postgresql://..., not int"),
        ("postgresql://host", "names no database"),
        ("postgresql://host:port/db", "is no address that can be read"),
        ("postgresql://host:5432,other:port/db", "is no address that can be read"),
        ("postgresql://u:12/p w@host/db", "special characters of a password as %xx"),
        ("postgresql://u:p w@host/db", "spaces or control characters"),
    ],
)
def test_a_wrong_place_is_refused_in_one_sentence(given: object, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        Settings.model_validate({"journal": given})
    assert str(raised.value).startswith("setting 'journal': ")
    assert fault in str(raised.value)
    assert "p w" not in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me@one:5432,two:5433/db?target_session_attrs=read-write",
        "postgresql://[::1]:5432,[::2]/db",
        "postgresql:///?service=journal",
        "postgresql:///db?host=/run/postgresql",
    ],
)
def test_what_libpq_reads_is_an_address(given: str) -> None:
    assert Settings(journal=given).journal == given


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        Settings(journal=tmp_path)


def test_the_variable_is_read_and_named_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_JOURNAL", str(tmp_path / "j.db"))
    assert Settings().journal == tmp_path / "j.db"
    assert Settings(journal="").journal is None  # given, and none
    monkeypatch.setenv("CALLBOARD_JOURNAL", "http://h/db")
    with pytest.raises(UsageError, match=r"^CALLBOARD_JOURNAL: must be a path"):
        Settings()


def test_a_relative_path_counts_from_where_the_settings_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(journal="j-{pid}.db")
    monkeypatch.chdir("/")
    assert settings.journal == tmp_path / "j-{pid}.db"


@given(password=st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=8, max_size=20))
def test_no_password_is_shown(password: str) -> None:
    password = f"PW{password}PW"
    for url in (
        f"postgresql://me:{password}@host:5432/db",
        f"postgres://host/db?user=me&password={password}&sslmode=require",
        f"postgresql://me@host/db?sslpassword={password}",
    ):
        settings = Settings(journal=url)
        assert settings.journal == url
        for told in (repr(settings), str(settings), settings.model_dump_json(), shown_place(url)):
            assert password not in told
        assert "host" in shown_place(url)
        assert "/db" in shown_place(url)


@pytest.mark.parametrize("name", ["j.db", "[j] #1!-{pid}.db"])
def test_no_model_is_shown_a_journal_in_its_workspace(tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    settings = Settings(workspace=tmp_path / "real", journal=tmp_path / "link" / name)
    secret = SecretFiles(tmp_path / "real", settings.secret_rules)
    file = name.replace("{pid}", "4711")
    for each in (file, f"{file}-wal", f"{file}-shm", f"{file}.lock"):
        assert secret.is_secret(tmp_path / "real" / each), each
    assert not secret.is_secret(tmp_path / "real" / "k.db")


@pytest.mark.parametrize(
    ("field", "value"),
    [("durability", "disk"), ("on_crash", "retry"), ("journal_keep_days", 0), ("journal_max_bytes", 10)],
)
def test_the_other_fields_are_checked(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"setting '{field}'"):
        Settings.model_validate({field: value})
