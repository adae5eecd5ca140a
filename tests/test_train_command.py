"""`arht train`: what it writes, what it says, what it refuses before the long work."""

import json

import pytest
import torch

from arht import posterior
from arht.data import Transform, load
from arht.training import History
from tests.commands_run import as_json, refused, run
from tests.data.official import omniglot

QUICK = ("--size", 16, "--epochs", 2, "--activation", "relu", "--learning-rate", 0.003, "--draws", 3, "--quiet")


def test_an_encoder_a_record_and_a_history(tmp_path, capsys):
    out = tmp_path / "encoder.safetensors"
    words = ("train", "digits", "--out", out, *QUICK, "--heldout", 0.1, "--validation", 0.05, "--kl-weight", 0.01)
    record = as_json(capsys, *words, "--record", tmp_path / "record.json", "--seed", 3)
    assert record["data"] == {
        "name": "digits",
        "train": 1018,
        "validation": 60,
        "heldout": 120,
        "classes": 10,
    }
    assert record["settings"]["kl_weight"] == 0.01
    assert record["test"]["images"] == 599
    assert record["history"]["epochs"][1]["loss"] < record["history"]["epochs"][0]["loss"]
    written = json.loads((tmp_path / "record.json").read_text())
    assert written == {key: value for key, value in record.items() if key != "out"}

    encoder = posterior.load(out)
    assert type(encoder).__name__ == "MeanField"
    assert encoder.record["seed"] == 3
    history = History.read(tmp_path / "encoder.safetensors.training" / "history.jsonl")
    assert history.as_dict()["epochs"] == record["history"]["epochs"]

    # the transform was measured on the images that were trained on, and on no others
    images = load("digits", "train", size=16)
    heldout = torch.tensor(encoder.record["heldout"])
    assert len(heldout) == len(set(heldout.tolist())) == 120
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(3))
    assert sorted(order[:120].tolist()) == heldout.tolist()
    assert Transform.of(images[order[180:].sort().values]) == encoder.transform

    # the record's accuracy is that of the file's encoder
    test = load("digits", "test", size=16)
    bank = encoder.bank(3, generator=torch.Generator().manual_seed(4))
    guesses = encoder.predict(encoder.transform(test), bank=bank).argmax(1)
    assert record["test"]["accuracy"] == pytest.approx(float((guesses == test.labels).double().mean()))


def test_the_seed_decides_and_a_finished_run_resumes_to_the_same_file(tmp_path, capsys):
    files = [tmp_path / f"{name}.safetensors" for name in ("a", "b", "c")]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        as_json(capsys, "train", "digits", "--out", file, *QUICK, "--limit", 200, "--seed", seed)
    tensors = [posterior.load(file).state_dict() for file in files]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    assert not all(torch.equal(tensors[0][name], tensors[2][name]) for name in tensors[0])
    as_json(capsys, "train", "digits", "--out", files[0], *QUICK, "--limit", 200, "--resume")
    again = posterior.load(files[0]).state_dict()
    assert all(torch.equal(tensors[0][name], again[name]) for name in again)
    for words, said in (
        (("--activation", "softplus"), "its net.activation is relu, not softplus"),
        (("--augment", "digits"), "its augment is None, not Augment"),
        (("--rho", -4), "its posterior.rho_mean is -3.0, not -4.0"),
        (("--embedding-dim", 50), "its parameters is "),
    ):
        code, _, err = run(capsys, "train", "digits", "--out", files[0], *QUICK, "--limit", 200, "--resume", *words)
        assert code == 2
        assert said in err


def test_what_a_person_sees(tmp_path, capsys):
    words = [word for word in QUICK if word != "--quiet"]
    code, out, err = run(capsys, "train", "digits", "--out", tmp_path / "e.safetensors", *words, "--limit", 200)
    assert code == 0
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all(part in lines[1] for part in ("loss ", "nll ", "kl ", "accuracy "))
    for part in ("arht train digits", "LeNet, mean_field", "test (599 images, 3 draws)", "macro F1"):
        assert part in " ".join(out.split())
    assert "e.safetensors" in "".join(out.replace("│", " ").split())  # a long path is broken, not cut


def test_contrastive_needs_no_labels_and_other_classes_are_no_test(tmp_path, capsys):
    words = ("--size", 16, "--epochs", 1, "--quiet", "--arch", "CNN", "--posterior", "deterministic")
    out = tmp_path / "e.safetensors"
    common = ("train", "digits", "--out", out, *words, "--limit", 200)
    record = as_json(capsys, *common, "--objective", "contrastive", "--augment", "digits")
    assert record["test"] is None
    assert posterior.load(out).net.head is None
    omniglot(tmp_path)
    record = as_json(capsys, "train", "omniglot", "--data-dir", tmp_path, "--out", out, *words)
    assert record["data"]["classes"] == 4
    assert record["test"] is None  # the evaluation part has other characters


def test_paper_settings_hold_out_a_tenth(tmp_path, capsys):
    words = ("--settings", "paper", "--epochs", 1, "--size", 16, "--quiet", "--limit", 200)
    record = as_json(capsys, "train", "digits", "--out", tmp_path / "e.safetensors", *words)
    assert record["data"]["validation"] == 20
    assert (record["settings"]["learning_rate"], record["settings"]["weight_decay"]) == (5e-5, 1e-5)
    assert record["history"]["epochs"][0]["validation_loss"] is not None


def test_the_options_are_checked_before_the_data(tmp_path, capsys):
    """The data set does not exist: a line about the options shows that they were looked at first."""
    for words, line in {
        ("--arch", "VGG"): "--arch must be one of LeNet, CNN, AlexNet, ResNet18, ResNet50; got 'VGG'.",
        ("--heldout", "1.5"): "--heldout must be a part between 0 and 1; got 1.5. Write for instance 0.1.",
        ("--draws", "0"): "--draws must be an integer >= 1; got 0. See arht train --help.",
        ("--members", "3"): "--members goes with --posterior ensemble; got --posterior mean_field. Leave it out, or "
        "change the posterior.",
        ("--objective", "contrastive"): "--objective contrastive needs --augment; got none. Write for instance "
        "--augment crops.",
    }.items():
        assert refused(capsys, "train", "nothing", "--out", tmp_path / "e", *words) == f"arht train: {line}"
    assert refused(capsys, "train", "nothing", "--out", tmp_path / "e", "--epochs", "0") == (
        "training.Settings: epochs must be an integer >= 1; got 0."
    )
    assert refused(capsys, "train", "nothing", "--out", tmp_path / "no" / "e") == (
        f"arht train: --out must be a file in a folder that can be written to; got {tmp_path / 'no' / 'e'}. "
        "Make the folder."
    )
    assert refused(capsys, "train", "nothing", "--out", tmp_path / "e").startswith("load: data must be one of mnist,")
    assert not list(tmp_path.iterdir())
