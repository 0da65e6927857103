"""Slurm's notations of time and memory, and amounts for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.units import format_bytes, format_memory, format_time, parse_memory, parse_time
from launcher.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60),
        ("10:00", 600),
        ("1:30:00", 5400),
        ("2-12", 60 * 3600),
        ("2-12:00", 60 * 3600),
        ("1-00:00:01", 86401),
        ("0:30", 30),
        (" 5 ", 300),
    ],
)
def test_time_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["1h", "1.5", "0", "-1", "", "1:2:3:4", "1-", "-5", "00:00", "0-0", "UNLIMITED", "1 2", "٣"]
)
def test_time_that_slurm_refuses_or_misreads_is_an_error_that_says_what_is_meant(text: str) -> None:
    with pytest.raises(UserError, match=r"1:30:00"):
        parse_time(text)


@given(st.integers(1, 400 * 86400))
def test_every_time_reads_back_as_it_was_written(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [("512M", 512), ("16G", 16384), ("16GB", 16384), ("1T", 1024**2), ("300", 300), ("1500K", 2), ("2g", 2048)],
)
def test_memory_is_read_as_slurm_reads_it(text: str, mebibytes: int) -> None:
    assert parse_memory(text) == mebibytes


@pytest.mark.parametrize("text", ["0.5G", "0", "-1G", "G", "", "1X", "1 G", "0M", "1e3"])
def test_memory_that_slurm_refuses_is_an_error_that_says_what_is_meant(text: str) -> None:
    with pytest.raises(UserError, match="16G"):
        parse_memory(text)


@given(st.integers(1, 10**9))
def test_every_amount_of_memory_reads_back_as_it_was_written(mebibytes: int) -> None:
    assert parse_memory(format_memory(mebibytes)) == mebibytes


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2_500_000, "2.4 MiB"), (2**20 - 1, "1.0 MiB"),
     (121 * 2**30, "121.0 GiB"), (2**40 - 1, "1.0 TiB"), (5000 * 2**40, "5000.0 TiB")],
)  # fmt: skip
def test_an_amount_for_people_has_the_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 2**49))
def test_an_amount_for_people_is_never_nothing_and_never_far_off(size: int) -> None:
    number, unit = format_bytes(size).split()
    assert 1 <= float(number) < 1024
    assert abs(float(number) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit) - size) <= 0.06 * size
