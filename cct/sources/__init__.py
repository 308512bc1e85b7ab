"""Where images come from: the official CIFAR sets, a folder, scikit-learn's digits, random ones.

A source is built as ``Source(**settings)``, which is cheap: it refuses what cannot work and knows
its ``classes`` and ``image_size`` (height, width). ``load()`` decodes and returns ``Data``.
"""

from cct.sources.cifar import CIFAR10, CIFAR100
from cct.sources.digits import Digits
from cct.sources.folder import Folder
from cct.sources.synthetic import Synthetic

__all__ = ["CIFAR10", "CIFAR100", "Digits", "Folder", "Synthetic"]
