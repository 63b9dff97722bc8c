"""The table of the data sets: their checksums and their public homes."""

from __future__ import annotations

from pathlib import Path

from doublecv.lab.data.idx import read_images
from doublecv.lab.data.omniglot import read_chardata, read_npz
from doublecv.lab.data.published import Checksum, Form, ImageSet, PublishedFile

IDX_HEADER = 16
PIXELS = 28 * 28


def _images(name: str, images: int, sha256: str, homes: tuple[str, ...]) -> PublishedFile:
    addresses = tuple(f"{home}/{name}.gz" for home in homes)
    return PublishedFile(name, Checksum("sha256", sha256), IDX_HEADER + images * PIXELS, addresses)


def _idx_form(train: str, test: str, homes: tuple[str, ...]) -> Form:
    """The two files of images; nothing here is supervised, so the files of labels are not asked for."""
    files = (
        _images("train-images-idx3-ubyte", 60_000, train, homes),
        _images("t10k-images-idx3-ubyte", 10_000, test, homes),
    )
    return Form(files, lambda contents: (read_images(contents[0]), read_images(contents[1])), 60_000, 10_000)


MNIST = ImageSet(
    "mnist",
    height=28,
    width=28,
    train=50_000,
    shuffle=False,
    forms=(
        _idx_form(
            train="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            test="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            homes=(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
        ),
    ),
)

FASHION_MNIST = ImageSet(
    "fashion-mnist",
    height=28,
    width=28,
    train=50_000,
    shuffle=False,
    forms=(
        _idx_form(
            train="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            test="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            homes=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
            ),
        ),
    ),
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
)

OMNIGLOT = ImageSet(
    "omniglot",
    height=28,
    width=28,
    train=23_000,
    shuffle=True,
    forms=(
        Form(
            (
                PublishedFile(
                    "omniglot28.npz",
                    Checksum("sha256", "19778bad86546bf11088ab5263f70d87e97234c262201b7a6bd1badde6437c45"),
                    bytes=5_106_232,
                ),
            ),
            lambda contents: read_npz(contents[0]),
            train_images=24_345,
            test_images=8_115,
        ),
        # The file of Burda, Grosse and Salakhutdinov (2016), of which git's id is known and no other checksum.
        Form(
            (
                PublishedFile(
                    "chardata.mat",
                    Checksum("git blob", "016a3536ffe5e1d38e42563a18d7a78bfaf643ec"),
                    bytes=None,
                    mirrors=("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/chardata.mat",),
                ),
            ),
            lambda contents: read_chardata(contents[0], height=28, width=28),
            train_images=24_345,
            test_images=8_070,
        ),
    ),
)

SETS = {image_set.name: image_set for image_set in (MNIST, FASHION_MNIST, OMNIGLOT)}
