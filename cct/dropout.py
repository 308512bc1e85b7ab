"""Dropout whose masks are cheap on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16  # a rate is a multiple of 1 / STEPS, since 16 random bits decide about a value


class Dropout(nn.Module):
    """Set each value to 0 at this rate while training, and scale the others up to keep the mean.

    Srivastava et al. 2014. On a CPU, torch's own draws a number of 53 bits for every value, which
    takes longer than a matrix product; here four values share 64 bits. Elsewhere, and compiled, it
    is torch's own.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.rate)
        dropped = min(round(self.rate * STEPS), STEPS - 1)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (bits >= dropped - STEPS // 2).to(x.dtype)
        return x * kept.mul_(STEPS / (STEPS - dropped))

    def extra_repr(self) -> str:
        return str(self.rate)
