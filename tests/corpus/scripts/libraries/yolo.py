"""ultralytics: a small YOLO trained and validated on a few pictures."""

import torch
from ultralytics import YOLO

YOLO("yolo11n.yaml").train(
    data="pictures.yaml", epochs=2, imgsz=64, batch=8, workers=0, plots=False, amp=False,
    device=0 if torch.cuda.is_available() else "cpu", optimizer="SGD", mosaic=0.0, close_mosaic=0,
    warmup_epochs=0, nbs=8, verbose=False, save=False, exist_ok=True,
)  # fmt: skip
