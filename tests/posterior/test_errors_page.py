"""The rows of docs/errors.md on encoders are provoked, one by one."""

import re

import pytest

from arht.errors import InputError
from tests.errors_page import pattern, rows
from tests.posterior.errors import CALLS

ROWS = rows("Encoders")


@pytest.mark.parametrize("name", CALLS)
def test_encoders(name, tmp_path):
    with pytest.raises(InputError) as caught:
        CALLS[name](tmp_path)
    assert re.fullmatch(pattern(ROWS[name][1]), str(caught.value))


def test_every_row_is_provoked():
    assert set(ROWS) == set(CALLS)
