"""The image sets of the paper's experiments: found or downloaded, verified, split."""

from doublecv.lab.data.dataset import Dataset
from doublecv.lab.data.loading import NAMES, load

__all__ = ["NAMES", "Dataset", "load"]
