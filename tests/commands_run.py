"""Run a command line in this process."""

import json

from arht.cli import main


def run(capsys, *words):
    """Exit code, standard output, standard error."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *words):
    """What a command that succeeds prints with --json."""
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def refused(capsys, *words):
    """The one line of a command that is refused."""
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err.rstrip("\n")
