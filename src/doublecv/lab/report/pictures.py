"""The pictures of a training run, small enough to stand in the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from doublecv.lab.vae.pictures import ENLARGED

FILE = "pictures.png"


def as_url(folder: Path) -> str | None:
    """The run's picture as a data URL, one pixel for each of an image; None where there is no readable picture.

    The file has each pixel several times over, and in colours; the page enlarges it by itself.
    """
    try:
        with Image.open(folder / FILE) as picture:
            grey = np.asarray(picture.convert("L"))[::ENLARGED, ::ENLARGED]
    except OSError:
        return None
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
