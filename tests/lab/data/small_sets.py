"""Small sets of images in the published formats, described as the real ones are."""

import gzip
import hashlib
import struct
import zlib

import numpy as np

from doublecv.lab.data.catalogue import Form, ImageSet, PublishedFile

HEIGHT, WIDTH = 3, 2
TRAIN_NAME, TEST_NAME = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


def random_images(count, height=HEIGHT, width=WIDTH, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (count, height, width)).astype(np.uint8)


def idx(images):
    return bytes([0, 0, 8, images.ndim]) + struct.pack(f">{images.ndim}i", *images.shape) + images.tobytes()


def sha256_file(name, content, mirrors=()):
    return PublishedFile(name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), tuple(mirrors))


def other_gzip(content):
    """The same content in two gzip members with a name, a time and another level: a wrapper like no other."""
    half = len(content) // 2
    packer = zlib.compressobj(level=1, wbits=-15)
    packed = packer.compress(content[:half]) + packer.flush()
    header = b"\x1f\x8b\x08\x08" + struct.pack("<I", 1_234_567_890) + b"\x00\x03" + b"other-name\0"
    return header + packed + struct.pack("<II", zlib.crc32(content[:half]), half) + gzip.compress(content[half:], 2)


class SmallSet:
    """7 training and 3 test images as two idx files; 5 of the 7 are trained on."""

    def __init__(self, homes=(), system_folder=None, shuffle=False):
        self.train, self.test = random_images(7, seed=1), random_images(3, seed=2)
        self.contents = {TRAIN_NAME: idx(self.train), TEST_NAME: idx(self.test)}
        files = tuple(
            sha256_file(name, content, [f"{home}/{name}.gz" for home in homes])
            for name, content in self.contents.items()
        )
        form = Form("idx", files, train_images=7, test_images=3)
        self.set = ImageSet(HEIGHT, WIDTH, 5, (form,), shuffle, system_folder, "small")

    @property
    def form(self):
        return self.set.forms[0]

    def write(self, root, packed=True, only=None):
        """Write the files, or only one of them, into the set's folder below `root`."""
        folder = root / self.set.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            if only in (None, name):
                path = folder / (f"{name}.gz" if packed else name)
                path.write_bytes(gzip.compress(content) if packed else content)
        return folder

    def is_loaded_in(self, dataset):
        """Whether the images are all there, in the published order and split."""
        parts = [(dataset.train, self.train[:5]), (dataset.validation, self.train[5:]), (dataset.test, self.test)]
        return all(np.array_equal(rows, images.reshape(len(images), -1)) for rows, images in parts)
