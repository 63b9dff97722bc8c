"""The image data sets of the paper's experiments: found or downloaded, verified, split."""

from doublecv.lab.data.catalogue import NAMES, Dataset
from doublecv.lab.data.fetch import load

__all__ = ["NAMES", "Dataset", "load"]
