"""Where a data set is found: in a folder that the user names, in the system's, in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.content import BrokenFile
from doublecv.lab.data.published import Form, ImageSet, PublishedFile

VARIABLE = "DOUBLECV_DATA"


class Found(NamedTuple):
    """The files of a set, in the order in which its form names them."""

    form: Form
    paths: tuple[Path, ...]


def find(image_set: ImageSet, directory: Path | None, cache: Path) -> Found | None:
    """The set's files in the first folder that has them; a folder with some of them only is an error.

    In the cache some of them may be missing: a download that was stopped goes on with the others.
    """
    for folder in named_folders(image_set, directory):
        if found := _all_or_nothing(image_set, folder):
            return found
    return _complete(image_set, cache / image_set.name)


def named_folders(image_set: ImageSet, directory: Path | None) -> list[Path]:
    """The folders besides the cache that are searched, in this order."""
    roots = [] if directory is None else [("--data-dir", Path(directory))]
    if value := os.environ.get(VARIABLE):
        roots.append((f"${VARIABLE}", Path(value).expanduser()))
    for called, root in roots:
        if not root.is_dir():
            raise InputError(f"{called} names {root}, which is not a folder")
    folders = [root / image_set.name for _, root in roots]
    return folders if image_set.system_folder is None else [*folders, image_set.system_folder]


def stored(folder: Path, file: PublishedFile) -> Path | None:
    """Where the file is in the folder, unpacked or not."""
    return next((folder / name for name in file.names if (folder / name).is_file()), None)


def cache_folder() -> Path:
    """Where the operating system wants what can be downloaded again."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("doublecv"))


def _complete(image_set: ImageSet, folder: Path) -> Found | None:
    for form in image_set.forms:
        paths = tuple(path for file in form.files if (path := stored(folder, file)))
        if len(paths) == len(form.files):
            return Found(form, paths)
    return None


def _all_or_nothing(image_set: ImageSet, folder: Path) -> Found | None:
    found = _complete(image_set, folder)
    if found is None:
        for form in image_set.forms:
            there = [path.name for file in form.files if (path := stored(folder, file))]
            missing = [file for file in form.files if stored(folder, file) is None]
            if there:
                wanted = " or ".join(missing[0].names)
                raise BrokenFile(f"{folder / missing[0].name}: expected {wanted}, found only {', '.join(there)} there")
    return found
