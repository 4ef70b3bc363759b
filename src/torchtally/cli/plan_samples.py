"""What a sample of `tally plan` has beside its text: images, sound, a second sequence."""

import argparse
import re
from typing import TYPE_CHECKING

from torchtally.cli.arguments import argparse_type, duration, sequence_length
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.models.samples import ModelSample

OPTIONS = ("source_sequence", "images", "audio")
EXAMPLES = """\
  tally plan llava/config.json --images 1x336      with its vision tower
  tally plan t5/config.json --source-sequence 512 --sequence 128
  tally plan unet/config.json --images 512 --gpus RTX-4090 --micro-batch 4
"""
IMAGES = re.compile(r"((?P<count>[1-9]\d{0,3})x)?(?P<size>[1-9]\d{0,4})", re.ASCII)


def image_sizes(text: str) -> tuple[int, int]:
    """(how many, pixels of a side) of "4x336" or "336"."""
    match = IMAGES.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:40]!r}: give COUNTxPIXELS (2x336), or the pixels of a side (512)")
    return int(match["count"] or 1), int(match["size"])


def add_samples(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "one sample of a model that is counted in its own class (docs/architectures.md)"
    )
    group.add_argument(
        "--source-sequence",
        type=sequence_length,
        metavar="N",
        help="tokens of the encoder or of a prompt; --sequence is the decoder's",
    )
    group.add_argument(
        "--images",
        type=argparse_type(image_sizes),
        metavar="[COUNTx]PIXELS",
        help="images per sample, by their side: 1x336; of a diffusion model the picture's: 1024",
    )
    group.add_argument("--audio", type=duration, metavar="TIME", help="audio per sample: 30s")


def sample_of(args: argparse.Namespace) -> "ModelSample":
    from torchtally.models.samples import ModelSample

    return ModelSample(
        batch=args.micro_batch or 1,
        sequence=args.sequence,
        source=args.source_sequence,
        images=args.images,
        audio_s=args.audio,
    )


def has_samples(args: argparse.Namespace) -> bool:
    """One of these options is given."""
    return any(getattr(args, name) is not None for name in OPTIONS)
