"""sentence-transformers: its trainer, with a ranking loss."""

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer

transformer = Transformer("bert", max_seq_length=32)
model = SentenceTransformer(modules=[transformer, Pooling(64)])
rows = [
    {"anchor": " ".join(["word1"] * 32), "positive": " ".join([f"word{n % 90}"] * 32)}
    for n in range(64)
]
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="out", per_device_train_batch_size=4, max_steps=4, report_to="none"
    ),
    train_dataset=Dataset.from_list(rows),
    loss=MultipleNegativesRankingLoss(model),
)
trainer.train()
