"""A short run of `benchmarks.fuzz`: damaged files give one line or are read."""

import pytest
from benchmarks import fuzz

TARGETS = fuzz.seeds()


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files(target, tmp_path):
    assert list(fuzz.problems({target: TARGETS[target]}, 60, tmp_path)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_whole_files_are_read(target, tmp_path):
    suffix, files, read = TARGETS[target]
    for data in files:
        (tmp_path / f"x{suffix}").write_bytes(data)
        read(tmp_path / f"x{suffix}")


def test_a_finding_is_found(tmp_path):
    def careless(path):
        return path.read_bytes()[1000]

    (found,) = fuzz.problems({"cifar": (".bin", [b"short"], careless)}, 1, tmp_path)
    assert "IndexError" in found
