"""What a setting may be: the annotated types that signatures use and ``cct/schema.py`` checks.

A constructor that says ``rank: Count`` thereby refuses ``rank=0`` on the command line, by name and
before anything is built.
"""

import math
import sys
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; an open end excludes its bound."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.open_low else number >= self.low
        below = number < self.high if self.open_high else number <= self.high
        return above and below and abs(number) <= sys.float_info.max  # not for inf, nan, 10**400

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}"
        if self.high == math.inf:
            return low
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high:g}"


MOST = 1e9  # no count of anything here is larger; a typing slip easily is

Count = Annotated[int, Range(1, MOST)]
Few = Annotated[int, Range(1, 256)]  # layers, pixels of a kernel: each costs much
Pixels = Annotated[int, Range(1, 4096)]
Margin = Annotated[int, Range(0, 256)]  # pixels
Ratio = Annotated[float, Range(0, 64, open_low=True)]
Width = Annotated[int, Range(1, 16384)]  # of a layer, whose matrices have the square of it
Kept = Annotated[int, Range(1, 10)]  # files of a run, each several times as large as the model
Later = Annotated[int, Range(2, MOST)]  # an epoch, counted from 1, that is not the first
Whole = Annotated[int, Range(0, MOST)]
Number = Annotated[float, Range(-math.inf)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Level = Annotated[float, Range(0, 10)]  # of an augmentation, from nothing to its severest
Fraction = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, 1, open_high=True)]  # a rate that may not drop everything
