"""Every annotated shape is checked while the tests run; each run has the same examples."""

# ruff: noqa: E402

import os

os.environ["ARHT_CHECK_SHAPES"] = "1"  # before arht is imported: see arht._shapes
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # tests run side by side
    os.environ.setdefault(name, "1")

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.shapes import annotated_modules

torch.set_num_threads(1)
install_import_hook(annotated_modules(), "tests.shapes.check")
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
