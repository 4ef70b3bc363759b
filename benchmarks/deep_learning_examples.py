"""Lambda's runs of NVIDIA's DeepLearningExamples, for `benchmarks.published_models`.

Facts of LambdaLabsML/DeepLearningExamples @c1781a3 and of lambdal/deeplearning-benchmark @aa5addb,
whose logs (pytorch/results*/*/PyTorch_*/*.txt) say the batch of each chip and what its iterations
took. Measured is the median iteration: BERT's and ResNet's tables are means with the first one,
which starts CUDA, cuDNN and the loader (7.5 s of the 46 that 100 steps took a GH200). Images and
words are made once.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.published_models import Row

Step = Callable[[], object]

LOADING_S = 9e-6
"""What BERT's loader takes for a sequence, in the process that trains: five tensors' rows are
looked up and stacked one by one, while the GPU waits, since each step ends with `loss.item()`. By
the same classes of PyTorch 2.13 on a server's CPU 8 to 11 us of CPU time, in batches of 48 to 768
of as many rows as SQuAD has."""


def waiting_s(row: "Row") -> float:
    """How long the GPU waits for the next batch of each step."""
    is_bert = row.source == "lambda" and row.model in BERT_WIDTHS
    return row.batch * LOADING_S if is_bert else 0.0


def deep_learning_example(row: "Row") -> Step:
    return {"resnet50": resnet, "ssd300": ssd}.get(row.model, bert)(row)


def scaled_step(
    loss_of: Callable[[], Any], optimizer: Any, *, init_scale: float, grows_after: int
) -> Step:
    """In float16 autocast, by a scaler."""
    import torch

    scaler = torch.amp.GradScaler("cuda", init_scale=init_scale, growth_interval=grows_after)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def resnet(row: "Row") -> Step:
    """ResNet-50, by a static scale."""
    import timm
    import torch

    torch.backends.cudnn.benchmark = True
    with torch.device("meta"):
        model = timm.create_model("resnet50")
    model = model.to_empty(device="cuda").train()
    images = torch.randn(row.batch, 3, row.size, row.size, device="cuda")
    classes = torch.zeros(row.batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def loss_of() -> Any:
        return torch.nn.functional.cross_entropy(model(images), classes)

    return scaled_step(loss_of, optimizer, init_scale=256, grows_after=10**9)


SSD_CHANNELS = (1024, 512, 512, 256, 256, 256)
SSD_BOXES = (4, 6, 6, 6, 4, 4)
SSD_CLASSES = 81
"""Of the maps of 38, 19, 10, 5, 3 and 1 positions a side: 8732 boxes of COCO."""


def ssd_model() -> Any:
    """SSD300: ResNet-50 without its last layers, five more blocks, two heads on each map."""
    import timm
    from torch import nn

    backbone = timm.create_model("resnet50", features_only=True, out_indices=(3,))
    first = backbone.layer3[0]
    first.conv2.stride = first.downsample[0].stride = (1, 1)

    def block(into: int, inner: int, out: int, *, is_strided: bool) -> nn.Module:
        wide = nn.Conv2d(
            inner, out, 3, stride=2 if is_strided else 1, padding=int(is_strided), bias=False
        )
        layers = (
            nn.Conv2d(into, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
        )
        return nn.Sequential(*layers, wide, nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    inner = (256, 256, 128, 128, 128)
    pairs = zip(SSD_CHANNELS, inner, SSD_CHANNELS[1:], strict=False)
    blocks = [block(*sizes, is_strided=number < 3) for number, sizes in enumerate(pairs)]
    heads = [
        nn.ModuleList(
            nn.Conv2d(channels, boxes * values, 3, padding=1)
            for channels, boxes in zip(SSD_CHANNELS, SSD_BOXES, strict=True)
        )
        for values in (4, SSD_CLASSES)
    ]
    return nn.ModuleList([backbone, nn.ModuleList(blocks), *heads])


def ssd(row: "Row") -> Step:
    """main.py --mode benchmark-training --amp: without the loader, whose images it waits for before
    it starts its clock (DALI's work on the GPU beside a step is not counted).
    """
    import torch
    from torch.nn import functional

    torch.backends.cudnn.benchmark = True
    with torch.device("meta"):
        model = ssd_model()
    model = model.to_empty(device="cuda").train()
    plain = [weight for weight in model.parameters() if weight.dim() == 1]
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed}]
    optimizer = torch.optim.SGD(groups, lr=0.0026, momentum=0.9, weight_decay=5e-4)
    count = sum(
        boxes * side**2 for boxes, side in zip(SSD_BOXES, (38, 19, 10, 5, 3, 1), strict=True)
    )
    anchors = torch.rand(1, 4, count, device="cuda")
    images = torch.randn(row.batch, 3, row.size, row.size, device="cuda")
    mean, deviation = (torch.rand(1, 3, 1, 1, device="cuda") for _ in range(2))
    boxes = torch.rand(row.batch * count, 4, device="cuda")
    labels = torch.zeros(row.batch * count, dtype=torch.int32, device="cuda")

    def heads_of(maps: Sequence[Any], heads: Any, values: int) -> Any:
        parts = [
            head(offsets).view(row.batch, values, -1)
            for head, offsets in zip(heads, maps, strict=True)
        ]
        return torch.cat(parts, 2).contiguous().float()

    def loss_of() -> Any:
        backbone, blocks, places, classes = model
        # Images and boxes are brought into form by the training loop, in float32.
        images.sub_(mean).div_(deviation)
        wanted = labels.long().view(row.batch, count)
        maps = backbone(images)
        for block in blocks:
            maps.append(block(maps[-1]))
        offsets, scores = heads_of(maps, places, 4), heads_of(maps, classes, SSD_CLASSES)
        return ssd_loss(offsets, scores, boxes.view(row.batch, count, 4), wanted, anchors)

    def ssd_loss(offsets: Any, scores: Any, boxes: Any, wanted: Any, anchors: Any) -> Any:
        """Of boxes that hold an object, and of three times as many of the others, the worst."""
        boxes = boxes.transpose(1, 2).contiguous()
        mask = wanted > 0
        centres = 10 * (boxes[:, :2] - anchors[:, :2]) / anchors[:, 2:]
        sizes = 5 * (boxes[:, 2:] / anchors[:, 2:]).log()
        target = torch.cat((centres, sizes), dim=1).contiguous()
        off = functional.smooth_l1_loss(offsets, target, reduction="none").sum(dim=1)
        off = (mask.float() * off).sum(dim=1)
        loss = functional.cross_entropy(scores, wanted, reduction="none")
        others = loss.clone()
        others[mask] = 0
        _, order = others.sort(dim=1, descending=True)
        _, rank = order.sort(dim=1)
        objects = mask.sum(dim=1)
        is_hard = rank < (3 * objects).clamp(max=count).unsqueeze(-1)
        total = off + (loss * (mask + is_hard).float()).sum(dim=1)
        return (total * (objects > 0).float() / objects.float().clamp(min=1e-6)).mean(dim=0)

    return scaled_step(loss_of, optimizer, init_scale=65536, grows_after=2000)


BERT_WIDTHS = {"bert_base": 768, "bert_large": 1024}
BERT_LAYERS = {"bert_base": 12, "bert_large": 24}


def bert_layer(width: int) -> Any:
    """Of modeling.py: positions first, so that the rows of one head lie a batch apart."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Any, mask: Any) -> Any:
            S, B, _ = x.shape
            heads, (*inputs, output) = width // 64, self.projections
            query, key, value = (layer(x).view(S, B * heads, 64) for layer in inputs)
            scores = torch.bmm(query.transpose(0, 1), key.permute(1, 2, 0))
            scores = scores.view(B, heads, S, S) / 8 + mask
            shares = self.dropout(functional.softmax(scores, dim=-1)).view(B * heads, S, S)
            context = torch.bmm(shares, value.transpose(0, 1)).transpose(0, 1).contiguous()
            x = self.norms[0](self.dropout(output(context.view(S, B, width))) + x)
            inner = functional.gelu(self.wide(x), approximate="tanh")
            return self.norms[1](self.dropout(self.narrow(inner)) + x)

    return Layer()


def bert_model(name: str) -> Any:
    """Two logits for each position."""
    import torch
    from torch import nn

    width = BERT_WIDTHS[name]

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.ModuleList(nn.Embedding(n, width) for n in (30528, 512, 2))
            self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.1)
            self.layers = nn.ModuleList(bert_layer(width) for _ in range(BERT_LAYERS[name]))
            self.pooler, self.logits = nn.Linear(width, width), nn.Linear(width, 2)

        def forward(self, ids: Any, kinds: Any, mask: Any) -> Any:
            places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0).expand_as(ids)
            words, positions, types = self.embeddings
            x = self.dropout(self.norm(words(ids) + positions(places) + types(kinds)))
            hidden = (1.0 - mask[:, None, None].to(x.dtype)) * -10000.0
            x = x.transpose(0, 1)
            for layer in self.layers:
                x = layer(x, hidden)
            x = x.transpose(0, 1).contiguous()
            self.pooler(x[:, 0]).tanh()
            return self.logits(x)

    return Bert()


def bert(row: "Row") -> Step:
    """For SQuAD, by apex's level O2: weights in float16, which FusedAdam has in float32 besides."""
    import torch

    with torch.device("meta"):
        model = bert_model(row.model)
    model = model.half().to_empty(device="cuda").train()
    weights = list(model.parameters())
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=3e-5, fused=True)

    def step() -> None:
        ids, mask, kinds = (
            torch.zeros(row.batch, row.size, dtype=torch.long).to("cuda") for _ in range(3)
        )
        places = torch.zeros(row.batch, dtype=torch.long).to("cuda")
        ends = model(ids, kinds, mask).split(1, dim=-1)
        losses = [
            torch.nn.functional.cross_entropy(end.squeeze(-1), places, ignore_index=row.size)
            for end in ends
        ]
        loss = (losses[0] + losses[1]) / 2
        (loss.float() * 65536).backward()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for master, weight in zip(masters, weights, strict=True):
            master.grad = None if weight.grad is None else torch.empty_like(master)
        kept = [master.grad for master in masters if master.grad is not None]
        torch._foreach_copy_(kept, gradients)
        torch._foreach_mul_(kept, 1 / 65536)
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
        model.zero_grad()
        loss.item()

    return step
