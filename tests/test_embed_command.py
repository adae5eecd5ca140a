"""`arht embed`: the same draws as in Python, in both formats; moments; memory that does not grow."""

import resource
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from arht import nets, posterior
from arht.data import load
from arht.io import read_table
from arht.io.embeddings import ArrayWriter, read_record
from arht.io.streams import open_table
from arht.stats import Moments
from tests.commands_run import as_json, refused, run

TEST = load("digits", "test", size=16)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """An encoder that `arht train` wrote, and its file."""
    from arht.cli import main

    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    words = f"train digits --out {path} --size 16 --epochs 1 --heldout 0.1 --draws 2 --quiet --json"
    assert main(words.split()) == 0
    return path


def drawn(encoder, images, draws, at="embedding", seed=0):
    loaded = posterior.load(encoder)
    bank = loaded.bank(draws, generator=torch.Generator().manual_seed(seed))
    return loaded.draw(loaded.transform(images), bank=bank, at=at)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_the_draws_are_those_of_python(encoder, tmp_path, capsys, suffix):
    out = tmp_path / f"draws.{suffix}"
    record = as_json(capsys, "embed", encoder, "digits", "--out", out, "--draws", 4, "--seed", 5)
    expected = drawn(encoder, TEST, 4, seed=5).numpy()
    (chunk,) = open_table(out).chunks(rows=10_000)
    assert chunk.x.dtype == np.float32
    assert np.array_equal(chunk.x, expected)
    assert record["shapes"] == {"embedding": [4, 84]}
    kept = read_record(out)
    assert {key: record[key] for key in kept} == kept
    assert kept["rows"] == 599
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_one_draw_is_a_table_that_every_command_reads(encoder, tmp_path, capsys):
    for name in ("x.npz", "y.parquet"):
        as_json(capsys, "embed", encoder, "digits", "--out", tmp_path / name, "--draws", 1, "--limit", 100)
        assert read_table(tmp_path / name).shape == (100, 84)
    assert as_json(capsys, "test", tmp_path / "x.npz", tmp_path / "y.parquet")["n"] == [100, 100]


def test_several_layers_and_labels(encoder, tmp_path, capsys):
    common = ("embed", encoder, "digits", "--draws", 3, "--limit", 50, "--labels", "--at", "embedding", "conv1:spread")
    as_json(capsys, *common, "--out", tmp_path / "x.npz")
    as_json(capsys, *common, "--out", tmp_path / "x.parquet")
    images = load("digits", "test", size=16, limit=50)
    expected = drawn(encoder, images, 3, at=["embedding", "conv1:spread"])
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays.files) == {"embedding", "conv1:spread", "label"}
        for name, values in expected.items():
            assert np.array_equal(arrays[name], values)
        assert arrays["label"].tolist() == images.labels.tolist()
    table = pq.read_table(tmp_path / "x.parquet")
    assert np.array_equal(table["conv1:spread"].to_pylist(), expected["conv1:spread"].numpy())
    assert table["label"].to_pylist() == images.labels.tolist()
    (chunk,) = open_table(f"{tmp_path / 'x.npz'}:conv1:spread").chunks(rows=50)
    assert np.array_equal(chunk.x, expected["conv1:spread"])


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_moments_are_those_of_the_draws(encoder, tmp_path, capsys, suffix):
    out = tmp_path / f"x.{suffix}"
    as_json(capsys, "embed", encoder, "digits", "--out", out, "--draws", 5, "--limit", 20, "--moments")
    if suffix == "npz":
        with np.load(out) as found:
            arrays = {name: found[name] for name in found.files}
    else:
        table = pq.read_table(out)
        arrays = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    expected = drawn(encoder, load("digits", "test", size=16, limit=20), 5)
    for i, draws in enumerate(expected):
        moments = Moments.of(draws)
        assert arrays["embedding/n"][i] == moments.n == 5
        assert np.allclose(arrays["embedding/mean"][i], moments.mean, rtol=1e-9, atol=1e-9)
        assert np.allclose(arrays["embedding/scatter"][i], moments.scatter, rtol=1e-6, atol=1e-9)


def test_what_was_held_out_and_what_was_trained_on(encoder, tmp_path, capsys):
    images, record = load("digits", "train", size=16), posterior.load(encoder).record
    held = torch.zeros(len(images), dtype=torch.bool)
    held[torch.tensor(record["heldout"])] = True
    for split, part in (("heldout", images[held]), ("trained", images[~held])):
        as_json(capsys, "embed", encoder, "digits", "--out", tmp_path / "x.npz", "--draws", 2, "--split", split)
        (chunk,) = open_table(tmp_path / "x.npz").chunks(rows=5000)
        assert np.array_equal(chunk.x, drawn(encoder, part, 2))
    assert "needs the data that the encoder was trained on; got mnist, it was digits." in refused(
        capsys, "embed", encoder, "mnist", "--out", tmp_path / "y.npz", "--split", "heldout"
    )
    assert not (tmp_path / "y.npz").exists()


def test_an_encoder_of_vectors_reads_a_table(tmp_path, capsys):
    model = posterior.MeanField(nets.MLP(in_features=6, out_features=2), generator=torch.Generator().manual_seed(0))
    model.save(tmp_path / "e.safetensors")
    x = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    as_json(capsys, "embed", tmp_path / "e.safetensors", tmp_path / "x.npy", "--out", tmp_path / "d.npz", "--draws", 3)
    (chunk,) = open_table(tmp_path / "d.npz").chunks(rows=30)
    assert np.array_equal(chunk.x, model.draw(x, 3, generator=torch.Generator().manual_seed(0)))
    line = refused(capsys, "embed", tmp_path / "e.safetensors", "digits", "--out", tmp_path / "f.npz")
    assert line.endswith("it has no transform. Save it with encoder.save(path, transform=...).")


def test_what_a_person_sees_and_what_is_refused(encoder, tmp_path, capsys):
    code, out, err = run(capsys, "embed", encoder, "digits", "--out", tmp_path / "x.npz", "--limit", 20, "--draws", 2)
    assert (code, err) == (0, "")
    assert out.startswith("20 inputs, draws: embedding 2 x 84; ")
    for words, line in {
        ("--out", tmp_path / "x.csv"): "embed: the file must end in .parquet or .npz; got",
        ("--out", tmp_path / "no" / "x.npz"): "embed: needs a file in a folder that can be written to; got",
        ("--out", tmp_path / "y.npz", "--draws", 0): "arht embed: --draws must be an integer >= 1; got 0.",
        ("--out", tmp_path / "y.npz", "--at", "conv9"): "draw: no layer 'conv9' in LeNet; near it: conv",
        ("--out", tmp_path / "y.npz", "--split", "val"): "load: digits has the splits train, test; got 'val'.",
    }.items():
        assert refused(capsys, "embed", encoder, "digits", *words).startswith(line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz"]
    (tmp_path / "half.safetensors").write_bytes(encoder.read_bytes()[:5000])
    line = refused(capsys, "embed", tmp_path / "half.safetensors", "digits", "--out", tmp_path / "y.npz")
    assert "must be a whole safetensors file" in line


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def broken(name):
        with ArrayWriter(tmp_path / name, {}) as writer:
            writer.write({"a": np.zeros((3, 2))})
            writer.write({"a": np.zeros((3, 4))})

    for name in ("x.npz", "x.parquet"):
        with pytest.raises(ValueError):
            broken(name)
        assert not list(tmp_path.iterdir())


GROW = """
import resource, sys
import numpy as np
from arht.io.embeddings import ArrayWriter
chunk = np.zeros((1000, 20, 50), np.float32)
for chunks in (5, 60):
    with ArrayWriter(sys.argv[1], {}) as writer:
        for i in range(chunks):
            writer.write({"embedding": chunk + i})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path, suffix):
    """240 MB of draws, after 20 MB of them, need no more than 40 MB on top."""
    words = [sys.executable, "-c", GROW, str(tmp_path / f"x.{suffix}")]
    few, many = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    unit = 1 if sys.platform == "darwin" else 1024
    assert (many - few) * unit < 40e6
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
