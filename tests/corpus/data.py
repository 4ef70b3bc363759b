"""What one downloads before a script runs, in toy sizes: the right formats, random contents."""

import io
import json
import pickle
import random
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

IMAGES = 640, 256
"""Of MNIST, to train on and to test on."""
PAPERS, WORDS, CITATIONS = 300, 50, 900
"""Of Cora: nodes, features, edges."""
VOCABULARY = 101
"""Of the text, with its end-of-line."""
CHARACTERS = 65


def mnist(work: Path, place: str = "../data") -> None:
    raw = work / place / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, number in zip(("train", "t10k"), IMAGES, strict=True):
        pixels = draw.randbytes(number * 28 * 28)
        images = struct.pack(">IIII", 2051, number, 28, 28) + pixels
        labels = struct.pack(">II", 2049, number) + bytes(n % 10 for n in range(number))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def mnist_inside(work: Path) -> None:
    mnist(work, "data")


def vae(work: Path) -> None:
    mnist(work)
    (work / "results").mkdir(exist_ok=True)


CORA_SERVER = """\
import contextlib
import io
import pathlib


@contextlib.contextmanager
def get(url, stream):
    class Response:
        raw = io.BytesIO(pathlib.Path(__file__).with_name("cora.tgz").read_bytes())

    yield Response
"""
"""Stands in for `requests`, with one file to be had."""


def cora_lists() -> tuple[list[list[int]], set[tuple[int, int]]]:
    """The words of each paper as ones and zeros, and who cites whom."""
    draw = random.Random(0)
    words = [[draw.randrange(2) for _ in range(WORDS)] for _ in range(PAPERS)]
    pairs = {(draw.randrange(PAPERS), draw.randrange(PAPERS)) for _ in range(CITATIONS)}
    return words, pairs


def cora_values() -> tuple[int, int]:
    """How many words are ones; how many citations there are, with each paper's of itself."""
    words, pairs = cora_lists()
    return sum(map(sum, words)), len(pairs | {(n, n) for n in range(PAPERS)})


def cora(work: Path) -> None:
    words, pairs = cora_lists()
    papers = "".join(
        "\t".join([str(n), *map(str, row), f"kind{n % 7}"]) + "\n" for n, row in enumerate(words)
    )
    edges = "".join(f"{one}\t{other}\n" for one, other in sorted(pairs))
    with tarfile.open(work / "cora.tgz", "w:gz") as archive:
        for name, text in (("cora/cora.content", papers), ("cora/cora.cites", edges)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (work / "requests.py").write_text(CORA_SERVER)


def words(work: Path) -> None:
    folder = work / "data" / "wikitext-2"
    folder.mkdir(parents=True, exist_ok=True)
    line = " ".join(f"word{n}" for n in range(VOCABULARY - 1))
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(f"{line}\n" * 100)


def bsds(work: Path) -> None:
    from PIL import Image

    for name in ("train", "test"):
        folder = work / "dataset" / "BSDS300" / "images" / name
        folder.mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (321, 321)).save(folder / f"{number}.jpg")


def pictures(work: Path) -> None:
    """A folder of images for each class, a style, and the weights of VGG16."""
    import torch
    import torchvision
    from PIL import Image

    (work / "images" / "one").mkdir(parents=True, exist_ok=True)
    for number in range(8):
        Image.new("RGB", (80, 80)).save(work / "images" / "one" / f"{number}.png")
    Image.new("RGB", (64, 64)).save(work / "style.png")
    cache = work.parents[2] / ".cache" / "torch" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    with torch.device("meta"):
        shapes = torchvision.models.vgg16().state_dict()
    # One element stands for all of a tensor: the file stays small.
    weights = {name: torch.zeros(1).expand(each.shape) for name, each in shapes.items()}
    torch.save(weights, cache / "vgg16-397923af.pth")


def tokens(work: Path) -> None:
    """Of GPT-2's vocabulary, as nanoGPT's prepare.py leaves them."""
    folder = work / "data" / "openwebtext"
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    ids = [draw.randrange(50257) for _ in range(20_000)]
    for name in ("train", "val"):
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))


def characters(work: Path) -> None:
    """The same for the works of Shakespeare."""
    folder = work / "data" / "shakespeare_char"
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(32 + n) for n in range(CHARACTERS - 1)] + ["\n"]
    draw = random.Random(0)
    ids = [draw.randrange(CHARACTERS) for _ in range(20_000)]
    for name in ("train", "val"):
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    meta = {
        "vocab_size": CHARACTERS,
        "itos": dict(enumerate(letters)),
        "stoi": {letter: number for number, letter in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


GPT_OF_CHARACTERS = {
    "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "bias": False,
    "vocab_size": CHARACTERS, "dropout": 0.2,
}  # fmt: skip


def checkpoint(work: Path) -> None:
    """What nanoGPT's train.py leaves after training on Shakespeare."""
    characters(work)
    make = "from model import GPT, GPTConfig; import json, sys, torch\n"
    make += f"arguments = json.loads('''{json.dumps(GPT_OF_CHARACTERS)}''')\n"
    make += (
        "saved = {'model': GPT(GPTConfig(**arguments)).state_dict(), 'model_args': arguments,\n"
        "         'config': {'dataset': 'shakespeare_char'}}\n"
        "torch.save(saved, 'out/ckpt.pt')\n"
    )
    (work / "out").mkdir()
    subprocess.run([sys.executable, "-c", make], cwd=work, check=True, capture_output=True)


def play(work: Path) -> None:
    """A text of 32 different characters, those of the script's prompt among them."""
    draw = random.Random(0)
    letters = [chr(97 + n) for n in range(26)] + list("OG ,!\n")
    (work / "input.txt").write_text("".join(letters) + "".join(draw.choices(letters, k=20_000)))


LLAMA = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def tokenizer(folder: Path) -> None:
    """One token for each of word0 to word99."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"word{n}" for n in range(100))]
    inner = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip


def llama(work: Path) -> None:
    """A small Llama with its tokenizer, as a hub has them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **LLAMA, num_attention_heads=4, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    LlamaForCausalLM(config).save_pretrained(work / "llama")
    tokenizer(work / "llama")


def bert(work: Path) -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**LLAMA, num_attention_heads=4)).save_pretrained(work / "bert")
    tokenizer(work / "bert")


def yolo(work: Path) -> None:
    """Pictures with a box each, to train on and to validate on: three batches of eight."""
    from PIL import Image

    draw = random.Random(0)
    for name in ("images", "labels"):
        (work / "pictures" / name).mkdir(parents=True)
    for number in range(24):
        pixels = draw.randbytes(3 * 64 * 64)
        picture = Image.frombytes("RGB", (64, 64), pixels)
        picture.save(work / "pictures" / "images" / f"{number}.png")
        box = f"{number % 2} 0.5 0.5 0.4 0.4\n"
        (work / "pictures" / "labels" / f"{number}.txt").write_text(box)
    (work / "pictures.yaml").write_text(
        f"path: {work / 'pictures'}\ntrain: images\nval: images\nnames:\n  0: a\n  1: b\n"
    )
