"""The surface and the layers of the package, and what `import arht` costs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import arht

SOURCE = Path(__file__).parent.parent / "src" / "arht"
NAMES = {
    "ARHTDetector",
    "ArhtError",
    "ArhtWarning",
    "Decision",
    "DetectionResult",
    "Guard",
    "InputError",
    "Moments",
    "Outcome",
    "Reference",
    "TestResult",
    "__version__",
    "arht_scores",
    "arht_test",
    "decide",
    "hotelling_test",
    "load",
    "plan",
    "rht_test",
}
# From the ground up: a room may import what is listed before it. Names in one line are on one floor, apart.
FLOORS = (
    ("_shapes", "errors"),
    ("stats",),
    ("io",),
    ("loading",),
    ("nets",),
    ("data",),
    ("posterior",),
    ("training",),
    ("evaluation",),
    ("detectors",),
    ("guard",),
    ("sklearn",),
    ("baselines",),
    ("experiments",),
    ("report",),
    ("scale",),
    ("serve",),
    ("demo",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {room: height for height, floor in enumerate(FLOORS) for room in floor}
HEAVY = {"jaxtyping", "jinja2", "lightning_fabric", "matplotlib", "pandas", "pooch", "pyarrow", "ray", "rich"} | {
    "safetensors",
    "scipy",
    "sklearn",
    "tyro",
}
SECONDS = 0.3


def room_of(module):
    """stats of arht.stats.rht; the package itself is "arht"."""
    words = module.split(".")
    return words[1] if len(words) > 1 else words[0]


def imported(path, package):
    """Dotted names of what a file imports from arht: inside functions and under TYPE_CHECKING as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "arht")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                words = package.split(".")
                base = ".".join([*words[: len(words) - node.level + 1], *filter(None, [node.module])])
            if base == "arht":
                yield from (f"arht.{alias.name}" for alias in node.names)
            elif base.startswith("arht."):
                yield base


def climbs(files):
    """Imports that do not go downwards, as "room/file imports module"."""
    found = []
    for module, path in files:
        room = room_of(module)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in imported(path, package):
            target = room_of(name)
            if target not in HEIGHT:  # a name of the public face, or the package as a whole
                target = room_of(arht._HOMES.get(target, "arht.cli"))
            if target != room and HEIGHT[target] >= HEIGHT[room]:
                found.append(f"{module} imports {name}")
    return found


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        words = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(words[:-1] if words[-1] == "__init__" else words)
        if module != "arht":
            yield module, path


def test_the_names_are_these():
    assert set(arht.__all__) == NAMES
    assert len(arht.__all__) == len(NAMES)
    assert dir(arht) == sorted(arht.__all__)


@pytest.mark.parametrize("name", arht._HOMES)
def test_every_name_is_where_its_home_says(name):
    assert getattr(arht, name) is getattr(import_module(arht._HOMES[name]), name)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'arht' has no attribute 'nothing'"):
        _ = arht.nothing


def test_every_room_has_its_floor():
    rooms = {room_of(module) for module, _ in modules()}
    assert rooms <= set(HEIGHT), f"give a floor in FLOORS to: {sorted(rooms - set(HEIGHT))}"


def test_imports_go_downwards():
    assert climbs(modules()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import arht.io",
        "import arht.io.tables as tables",
        "from arht import cli",
        "from arht import arht_stream_of_a_name_unknown",
        "from arht.detectors.guard import Guard",
        "from ..io import read",
        "from ... import arht",
        "def late():\n    from arht.commands import test",
    ],
)
def test_an_import_that_goes_up_is_seen(line, tmp_path):
    path = tmp_path / "rht.py"
    path.write_text(line, encoding="utf-8")
    seen = climbs([("arht.stats.rht", path)])
    assert bool(seen) is (line != "from ... import arht")


@pytest.mark.parametrize(
    "line", ["import torch", "from arht.errors import InputError", "from . import pooled", "from arht.stats import rht"]
)
def test_an_import_that_goes_down_or_aside_is_not(line, tmp_path):
    path = tmp_path / "rht.py"
    path.write_text(line, encoding="utf-8")
    assert climbs([("arht.stats.rht", path)]) == []


def python(*arguments):
    """Standard output and error of a fresh interpreter, without what the tests set up here."""
    env = {k: v for k, v in os.environ.items() if k not in ("ARHT_CHECK_SHAPES", "PYTHONPATH")}
    env["PYTHONPATH"] = str(SOURCE.parent)
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def seconds(statement):
    """Processor and waiting time that -X importtime gives each top module, in seconds."""
    _, text = python("-X", "importtime", "-c", statement)
    lines = [line.removeprefix("import time:").split("|") for line in text.splitlines() if line.count("|") == 2]
    top = [(name.strip(), cumulative) for _, cumulative, name in lines if not name.startswith("  ")]
    return {name: int(cumulative) / 1e6 for name, cumulative in top if cumulative.strip().isdigit()}


def test_import_is_light():
    """`import arht`, and the use of its tests' names, load none of the heavy packages that torch does not."""
    before = "import json, sys, torch; before = set(sys.modules); "
    after = "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    alone = set(json.loads(python("-c", f"{before}import arht; {after}")[0]))
    assert not alone & HEAVY
    used = set(json.loads(python("-c", f"{before}import arht; arht.arht_test, arht.Moments, arht.decide; {after}")[0]))
    assert "arht" in used
    assert not used & HEAVY


def test_import_is_quick():
    """After torch, arht and all that its names load take less than 0.3 s: the best of three, for a busy machine."""
    statement = "import torch\nimport arht\nimport arht.stats"
    best = min(sum(t for name, t in seconds(statement).items() if name.startswith("arht")) for _ in range(3))
    assert 0 < best < SECONDS
