"""Make what is downloaded elsewhere: a CSV file of texts, a tokenizer, and the weights of a BERT, which are random."""

import csv
import importlib
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM

LABELS = ("asyncio", "email", "unittest")
"""Packages of Python's standard library; a text is a line of their code."""

rows = []
for label in LABELS:
    for file in sorted(Path(importlib.import_module(label).__path__[0]).glob("*.py")):
        lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        rows += [(line, label) for line in lines if len(line) > 30]
folder = Path("build/bert")
folder.mkdir(parents=True, exist_ok=True)
with Path("build/texts.csv").open("w", encoding="utf-8", newline="") as target:
    csv.writer(target).writerows([("text", "label"), *rows])
tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106  # it is no password
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
tokenizer.train_from_iterator(
    [text for text, _ in rows],
    trainers.WordPieceTrainer(vocab_size=2048, special_tokens=special, show_progress=False),
)
tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
tokenizer.save(str(folder / "tokenizer.json"))
torch.manual_seed(0)
sizes = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
}
config = BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **sizes)
BertForMaskedLM(config).save_pretrained(folder)
