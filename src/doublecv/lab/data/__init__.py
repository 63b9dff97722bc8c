"""The image data sets of the paper's experiments: found or downloaded, verified, split."""

from doublecv.lab.data.catalogue import NAMES
from doublecv.lab.data.fetch import load
from doublecv.lab.data.readers import Dataset

__all__ = ["NAMES", "Dataset", "load"]
