"""Pictures of queries as data URIs, small enough to be inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from arht.errors import InputError

__all__ = ["thumbnails"]

SIDE = 96
"""Larger pictures are made smaller, to this many pixels a side."""


def thumbnails(images: Any, rows: Sequence[int], *, limit: int = 300) -> dict[int, dict[str, Any]]:
    """PNG pictures of the rows of `arht.data.Images`, by position in `rows`: the first and the last of them.

    Row r of the queries is picture r of the images.
    """
    beyond = max(rows, default=0)
    if beyond >= len(images):
        raise InputError(
            f"arht report: --images must hold the pictures of the queries, in their order; got {len(images)} "
            f"pictures, but a query has row {beyond}. Name the data that was scored."
        )
    places = list(range(len(rows)))
    if len(places) > limit:
        places = places[: limit // 2] + places[-(limit // 2) :]
    return {place: _thumbnail(images.pixels[rows[place]].numpy()) for place in places}


def _thumbnail(pixels: Any) -> dict[str, Any]:
    from PIL import Image

    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    source = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"src": source, "width": picture.width, "height": picture.height}
