"""Scores of real images: scikit-learn's digits, 8 and 9 unknown to the detector, against one reference a digit."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from arht import data
from arht.errors import ResolutionWarning
from arht.io.scores import write_scores
from arht.stats import Moments, Reference, arht_scores, decide
from arht.stats.nulls import Conformal

LEVELS = np.linspace(0, 1, 201)
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>\"'>{{7*7}}"


def summary(scores):
    values = scores.numpy()
    return {
        "n": len(values),
        "mean": float(values.mean()),
        "sd": float(values.std()),
        "quantiles": np.quantile(values, LEVELS).tolist(),
    }


def moved_copies(images, generator):
    """Ten copies of each 8 × 8 image, each moved by its own random part of a pixel (bilinear, the border repeated)."""
    count = len(images) * 10
    copies = images.reshape(-1, 1, 8, 8).repeat_interleave(10, 0)
    motion = torch.eye(2, 3, dtype=torch.float64).repeat(count, 1, 1)
    motion[:, :, 2] = 0.5 * (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1) * 2 / 8
    where = torch.nn.functional.affine_grid(motion, [count, 1, 8, 8], align_corners=False)
    moved = torch.nn.functional.grid_sample(copies, where, padding_mode="border", align_corners=False)
    return moved.reshape(len(images), 10, -1)


@pytest.fixture(scope="session")
def digits():
    """Columns, run record and the scores themselves of the 599 test images; image 5 holds a NaN."""
    generator = torch.Generator().manual_seed(0)
    train, test = data.load("digits", "train"), data.load("digits", "test")
    known = (train.labels < 8).nonzero()[:, 0]
    reference, calibration = known[torch.randperm(len(known), generator=generator)].split([500, len(known) - 500])

    def draws(images):
        return moved_copies(images.pixels.double().flatten(1), generator)

    references = [
        Reference.of(Moments.of(draws(train[reference[train.labels[reference] == digit]]).flatten(0, 1)))
        for digit in range(8)
    ]

    def score(queries):
        found = [arht_scores(queries, one, ridges=[1e-4 * float(one.eigenvalues.mean())]) for one in references]
        return torch.stack([result.score for result in found]).min(0)

    law = Conformal(score(draws(train[calibration])).values)
    queries = draws(test)
    queries[5, 0, 3] = float("nan")
    scores, nearest = score(queries)
    pvalues = law.pvalue(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolutionWarning)
        decision = decide(pvalues, fdr=0.2, smallest_pvalue=law.smallest_pvalue)
    columns = {
        "row": np.arange(len(test)),
        "statistic": scores.numpy(),
        "score": scores.numpy(),
        "pvalue": pvalues.numpy(),
        "ridge": np.full(len(test), 1e-4),
        "outcome": scores.isnan().long().numpy(),
        "adjusted_pvalue": decision.adjusted.numpy(),
        "rejected": decision.rejected.numpy(),
        "label": (test.labels >= 8).long().numpy(),
        "nearest_class": nearest.numpy(),
    }
    run = {
        "schema": 1,
        "kind": "scores",
        "command": "arht score detector.safetensors digits.npy --out scores.parquet",
        "versions": {"torch": torch.__version__},
        "settings": {"fdr": 0.2, "method": "bh"},
        "queries": [{"path": "digits.npy", "rows": len(test)}],
        "detector": {"path": "detector.safetensors", "class": "ARHTDetector", "parameters": {"multiples": [1, 5, 10]}},
        "method": "arht",
        "null": repr(law),
        "guarantee": "conformal",
        "smallest_pvalue": law.smallest_pvalue,
        "decision": {"fdr": 0.2, "method": "bh", "rejected": decision.rejected_count, "tested": decision.tested},
        "calibration": summary(law.scores),
        "reference": summary(score(draws(train[reference])).values),
        "audit": None,
    }
    json.dumps(run, allow_nan=False)
    return {"columns": columns, "run": run, "calibration": law.scores.numpy()}


@pytest.fixture(scope="session")
def scores_file(digits, tmp_path_factory):
    """The same as a parquet file, each query with an identifier; the most suspicious one's is an attack."""
    import pyarrow as pa

    columns = dict(digits["columns"])
    names = np.array([f"image {row}" for row in columns["row"]], dtype=object)
    names[int(np.nanargmax(columns["score"]))] = EVIL
    columns["id"] = names
    run = {**digits["run"], "settings": {"note": EVIL, EVIL: 1}}
    arrays = {name: pa.array(values.tolist() if values.dtype == object else values) for name, values in columns.items()}
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    path = tmp_path_factory.mktemp("scores") / "scores.parquet"
    write_scores(path, schema, [pa.record_batch(list(arrays.values()), schema=schema)], run)
    return path
