"""Parameters and multiply-adds of the paper's layers and of a CCT with each mixer.

python scripts/synthesizer_table.py --dim 1024 --length 32 --model cct_2_3x2
"""

import argparse
import sys
from dataclasses import astuple
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where train.py lies

from cct import synthesizer
from cct.build import build_model
from cct.config import compose, options
from cct.model import cost

LAYER_HEADER = ("layer", "n_params", "flops", "trainable", "frozen", "multiply-adds")
CCT_HEADER = ("mixer", "trainable", "frozen", "multiply-adds")


def layer_rows(dim: int, length: int) -> list[tuple]:
    with torch.device("meta"):  # counted, never computed: any size fits
        x = torch.zeros(1, length, dim)
        layers = {
            "vanilla": synthesizer.Transformer(dim),
            "dense": synthesizer.SynthesizerDense(dim, length),
            "random": synthesizer.SynthesizerRandom(dim, length),
            "random, fixed": synthesizer.SynthesizerRandom(dim, length, fixed=True),
            "factorized random": synthesizer.FactorizedSynthesizerRandom(dim),
            "factorized dense": synthesizer.FactorizedSynthesizerDense(dim, length),
            "mixture": synthesizer.MixtureSynthesizers(dim, length),
        }
    rows = []
    for name, layer in layers.items():
        printed = synthesizer.get_n_params(layer), synthesizer.calculate_flops(layer.children())
        true = cost(layer, x)
        rows.append((name, *printed, true.trainable, true.frozen, true.multiply_adds))
    return rows


def cct_rows(name: str) -> tuple[list[tuple], list[tuple]]:
    """Return a row for each mixer: of the whole model, and of the mixer of one block."""
    whole, alone = [], []
    for mixer in options("mixer"):
        cfg = compose([f"model={name}", f"mixer={mixer}"]).cfg
        model = build_model(cfg, classes=10, image_size=(32, 32))
        tokens = torch.zeros(1, model.tokens, cfg.model.dim)
        whole.append((mixer, *astuple(cost(model, torch.zeros(1, 3, 32, 32)))))
        alone.append((mixer, *astuple(cost(model.blocks[0].get_submodule("mixer"), tokens))))
    return whole, alone


def show(header: tuple, rows: list[tuple]) -> None:
    lines = [header, *((name, *(f"{n:,}" for n in numbers)) for name, *numbers in rows)]
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *numbers in lines:
        print(name.ljust(first), *(f"{n:>{w + 1}}" for n, w in zip(numbers, others, strict=True)))


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    # Without its usage text a parser reports a mistake in one line.
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, allow_abbrev=False)
    parser.add_argument("--dim", type=count, default=1024, help="of the layers (1024)")
    parser.add_argument("--length", type=count, default=32, help="tokens of the layers (32)")
    parser.add_argument("--model", choices=options("model"), default="cct_2_3x2")
    given = parser.parse_args(arguments)
    print(f"Layers of dim {given.dim} on {given.length} tokens; n_params and flops as published,")
    print("then true counts, multiply-adds for a batch of one")
    show(LAYER_HEADER, layer_rows(given.dim, given.length))
    print(f"\n{given.model} with each mixer, for one 32x32 image and 10 classes")
    whole, alone = cct_rows(given.model)
    show(CCT_HEADER, whole)
    print("\nThe mixer of one of its blocks alone")
    show(CCT_HEADER, alone)


if __name__ == "__main__":
    main()
