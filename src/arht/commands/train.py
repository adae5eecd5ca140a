"""``arht train``: an encoder from a data set."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import check_least, to_json
from arht.errors import InputError

if TYPE_CHECKING:
    from arht.data import Images
    from arht.training import Settings

__all__ = ["Train"]

WHO = "arht train"

ARCHITECTURES = ("LeNet", "CNN", "AlexNet", "ResNet18", "ResNet50")
POSTERIORS = ("mean_field", "mc_dropout", "ensemble", "deterministic")


@dataclass(frozen=True)
class Train:
    """Train an encoder on a data set and write it to a file.

    DATA is the name of a data set (see arht data), a folder of images with one sub-folder per class, or an npz file.
    Beside FILE a folder FILE.training holds the checkpoint and history.jsonl.
    """

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Name of a data set, a folder of images with class sub-folders, or an npz file."""
    out: Annotated[str, arg(metavar="FILE")]
    """The encoder's file, for instance encoder.safetensors."""
    arch: Annotated[str, arg(metavar="|".join(ARCHITECTURES))] = "LeNet"
    """The architecture."""
    posterior: Annotated[str, arg(metavar="|".join(POSTERIORS))] = "mean_field"
    """What makes the weights random."""
    layers: Annotated[tuple[str, ...] | None, arg(metavar="NAME...", help_behavior_hint="(default: all)")] = None
    """Layers that are random, by name."""
    rho: Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="(default: -3, the paper's)")] = None
    """Where mean_field's scales start: softplus(rho). Lower learns faster."""
    members: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: 5)")] = None
    """Nets in an ensemble."""
    activation: Annotated[str, arg(metavar="relu|softplus")] = "softplus"
    """The activation function."""
    embedding_dim: Annotated[int | None, arg(metavar="P", help_behavior_hint="(default: 84)")] = None
    """Width of LeNet's embedding."""
    size: Annotated[int, arg(metavar="PIXELS")] = 32
    """Images are resized to this height and width."""
    channels: Annotated[int | None, arg(metavar="1|3", help_behavior_hint="(default: those of the data)")] = None
    """Grey or colour."""
    objective: Annotated[str, arg(metavar="classification|contrastive")] = "classification"
    """What is learned: the classes, or which views belong to one image."""
    augment: Annotated[str, arg(metavar="none|digits|crops|photos")] = "none"
    """digits: moved by up to 2 pixels. crops: by up to 4, and mirrored. photos: the same, and colour jitter."""
    settings: Annotated[str, arg(metavar="default|paper")] = "default"
    """default: Adam, rate 1e-3 falling to 0 along a cosine, 20 epochs. paper: rate 5e-5, weight decay 1e-5, 100 epochs,
    early stopping on a tenth of the training images. The next options change one setting each."""
    epochs: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Passes through the training images."""
    learning_rate: Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="")] = None
    """Learning rate of Adam."""
    weight_decay: Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="")] = None
    """Weight decay of Adam."""
    batch_size: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: 128)")] = None
    """Images per step."""
    kl_weight: Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="(default: 1)")] = None
    """Weight of KL / N in the loss; below 1 the posterior is tempered."""
    warmup_epochs: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: 0)")] = None
    """Epochs over which the weight of the KL rises."""
    schedule: Annotated[str | None, arg(metavar="constant|cosine", help_behavior_hint="")] = None
    """The learning rate over the steps."""
    patience: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Stop after so many epochs without a better validation loss, and keep the best."""
    local_reparameterisation: bool = False
    """Noise on the outputs of layers instead of on weights, while training."""
    validation: Annotated[
        float | None, arg(metavar="FRACTION", help_behavior_hint="(default: 0, with patience 0.1)")
    ] = None
    """Part of the training images that is held out to watch the loss."""
    heldout: Annotated[float, arg(metavar="FRACTION")] = 0.0
    """Part of the training images that the encoder never sees, kept for calibration; the file states which."""
    limit: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Take only so many training images."""
    draws: Annotated[int, arg(metavar="K")] = 20
    """Weight draws of the predictive mean on the test images."""
    seed: Annotated[int, arg(metavar="INTEGER")] = 0
    """Seed of everything random."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """Where the data sets lie."""
    record: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the run record, a small JSON file, there."""
    threads: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Threads of torch."""
    resume: bool = False
    """Go on from the checkpoint of a run that was cut off."""
    quiet: bool = False
    """No progress on standard error."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Read, train, test, write, print."""
        record = _train(self)
        sys.stdout.write(to_json(record) if self.json else _table(record))
        return 0


def _train(options: Train) -> dict[str, Any]:
    settings = _settings(options)
    out = _writable("--out", options.out)
    record_file = None if options.record is None else _writable("--record", options.record)
    import torch

    from arht import posterior, training

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(options.seed)
    images = _load(options, "train", options.limit)
    parts = _divide(options, settings, len(images))
    train, validation = images[parts["train"]], images[parts["validation"]] if len(parts["validation"]) else None
    transform, encoder = _encoder(options, train, generator)
    started = time.perf_counter()
    history = training.fit(
        encoder,
        train,
        objective=options.objective,
        settings=settings,
        validation=validation,
        transform=transform,
        augment=_augmentation(options),
        generator=generator,
        folder=out.with_name(out.name + ".training"),
        resume=options.resume,
        progress=not options.quiet,
    )
    seconds = time.perf_counter() - started
    test = None if options.objective != "classification" else _evaluate(options, encoder, transform, images.classes)
    record = {
        "command": shlex.join(["arht", *sys.argv[1:]]),
        "data": {
            "name": images.name,
            "train": len(train),
            "validation": len(parts["validation"]),
            "heldout": len(parts["heldout"]),
            "classes": len(images.classes),
        },
        "architecture": options.arch,
        "posterior": options.posterior,
        "settings": asdict(settings),
        "options": {field.name: getattr(options, field.name) for field in fields(options)},
        "seed": options.seed,
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 3),
        "history": history.as_dict(),
        "test": test,
    }
    heldout = {"heldout": parts["heldout"].tolist(), "limit": options.limit}
    posterior.save(encoder, out, transform=transform, record=record | heldout)
    if record_file is not None:
        record_file.write_text(to_json(record), encoding="utf-8")
    return {**record, "out": str(out)}


def _settings(options: Train) -> Settings:
    """The named settings with what the options change; options that need no data are checked here."""
    for name, known in (
        ("arch", ARCHITECTURES),
        ("posterior", POSTERIORS),
        ("settings", ("default", "paper")),
        ("augment", ("none", "digits", "crops", "photos")),
        ("objective", ("classification", "contrastive")),
        ("activation", ("relu", "softplus")),
    ):
        if getattr(options, name) not in known:
            raise InputError(f"{WHO}: --{name} must be one of {', '.join(known)}; got {getattr(options, name)!r}.")
    check_least(WHO, options, draws=1, size=1, members=1, limit=1, threads=1, seed=0)
    for name, owner in (("members", "ensemble"), ("layers", "mean_field"), ("rho", "mean_field")):
        if getattr(options, name) is not None and options.posterior != owner:
            raise InputError(
                f"{WHO}: --{name} goes with --posterior {owner}; got --posterior {options.posterior}. Leave it out, or "
                "change the posterior."
            )
    if options.objective == "contrastive" and options.augment == "none":
        raise InputError(
            f"{WHO}: --objective contrastive needs --augment; got none. Write for instance --augment crops."
        )
    for name in ("heldout", "validation"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < 1:
            raise InputError(f"{WHO}: --{name} must be a part between 0 and 1; got {value}. Write for instance 0.1.")
    from arht.training import Settings

    base = Settings.paper() if options.settings == "paper" else Settings(schedule="cosine")
    names = {field.name for field in fields(Settings)}
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return replace(base, **given)


def _writable(flag: str, name: str) -> Path:
    """The path of a file that can be written, before hours are spent on it."""
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(
            f"{WHO}: {flag} must be a file in a folder that can be written to; got {name}. Make the folder."
        )
    return path


def _load(options: Train, split: str, limit: int | None = None) -> Images:
    from arht import data

    return data.load(
        options.data, split, data_dir=options.data_dir, size=options.size, channels=options.channels, limit=limit
    )


def _divide(options: Train, settings: Settings, count: int) -> dict[str, Any]:
    """Positions of the training, validation and held-out images; the seed alone decides."""
    import torch

    part = options.validation
    if part is None:
        part = 0.1 if settings.patience is not None else 0.0
    order = torch.randperm(count, generator=torch.Generator().manual_seed(options.seed))
    held, watched = round(options.heldout * count), round(part * count)
    if held + watched >= count:
        raise InputError(
            f"{WHO}: --heldout and --validation must leave images to train on; got {held} and {watched} of {count}."
        )
    pieces = order.split([held, watched, count - held - watched])
    names = ("heldout", "validation", "train")
    return {name: piece.sort().values for name, piece in zip(names, pieces, strict=True)}


def _encoder(options: Train, train: Images, generator: Any) -> tuple[Any, Any]:
    """The transform measured on the training images, and the untrained encoder."""
    import torch

    from arht import nets, posterior
    from arht.data import Transform

    classes = None if options.objective == "contrastive" else len(train.classes)
    config: dict[str, Any] = {
        "architecture": options.arch,
        "in_channels": train.pixels.shape[1],
        "image_size": options.size,
        "num_classes": classes,
        "activation": options.activation,
    }
    if options.embedding_dim is not None:
        config["embedding_dim"] = options.embedding_dim

    def net() -> Any:
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nets.build(config)

    if options.posterior == "ensemble":
        encoder: Any = posterior.Ensemble([net() for _ in range(options.members or 5)])
    elif options.posterior == "deterministic":
        encoder = posterior.Deterministic(net())
    elif options.posterior == "mc_dropout":
        encoder = posterior.MCDropout(net())
    else:
        rho = -3.0 if options.rho is None else options.rho
        layers = list(options.layers) if options.layers else "all"
        encoder = posterior.MeanField(net(), layers=layers, generator=generator, rho_mean=rho)
    return Transform.of(train), encoder


def _augmentation(options: Train) -> Any:
    from arht.data import Augment

    if options.augment == "none":
        return None
    return {"digits": Augment.digits, "crops": Augment, "photos": Augment.photos}[options.augment]()


def _evaluate(options: Train, encoder: Any, transform: Any, classes: tuple[str, ...]) -> dict[str, Any] | None:
    """Accuracy, macro F1 and negative log-likelihood of the predictive mean, where there are test images."""
    import torch
    from sklearn.metrics import f1_score

    try:
        images = _load(options, "test")
    except InputError:
        return None
    if images.classes != classes or images.labels is None:
        return None
    generator = torch.Generator().manual_seed(options.seed + 1)
    bank = encoder.bank(options.draws, generator=generator)
    chunks = [
        encoder.predict(transform(images.pixels[start : start + 1000]), options.draws, bank=bank)
        for start in range(0, len(images), 1000)
    ]
    probabilities, labels = torch.cat(chunks).double(), images.labels
    assert labels is not None
    guesses = probabilities.argmax(1)
    right = probabilities[torch.arange(len(labels)), labels].clamp_min(1e-12)
    return {
        "images": len(images),
        "draws": options.draws,
        "accuracy": float((guesses == labels).double().mean()),
        "macro_f1": float(f1_score(labels.numpy(), guesses.numpy(), average="macro")),
        "nll": float(-right.log().mean()),
    }


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    names = ("arht", "torch", "numpy", "lightning-fabric", "scikit-learn")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def _table(record: dict[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    epochs, test = record["history"]["epochs"], record["test"]
    data = record["data"]
    rows = {
        "data": f"{data['name']}: {data['train']} images to train on, {data['validation']} for validation, "
        f"{data['heldout']} never seen",
        "encoder": f"{record['architecture']}, {record['posterior']}",
        "epochs": f"{len(epochs)} in {record['seconds']:.0f} s",
        "last loss, nll, KL": f"{epochs[-1]['loss']:.4f}, {epochs[-1]['nll']:.4f}, {epochs[-1]['kl']:.0f}",
    }
    if test is None and record["options"]["objective"] == "classification":
        rows["test"] = "none: there are no test images of these classes"
    elif test is not None:
        rows[f"test ({test['images']} images, {test['draws']} draws)"] = (
            f"accuracy {test['accuracy']:.4f}, macro F1 {test['macro_f1']:.4f}, nll {test['nll']:.4f}"
        )
    rows["file"] = record["out"]
    table = Table(title=f"{WHO} {record['options']['data']}", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()
