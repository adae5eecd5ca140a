"""How the documentation is built: ``make docs``."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]
os.environ["ARHT_CHECK_SHAPES"] = "1"  # before arht is imported, so that signatures show shapes

import arht  # noqa: E402

project = "arht"
author = "The arht developers"
project_copyright = "The arht developers"
version = release = arht.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "records"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nitpicky = False

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "signature"
napoleon_google_docstring = False

html_theme = "furo"
html_title = f"arht {version}"
