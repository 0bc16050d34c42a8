"""Tiny seeded models, saved in the layouts that real ones have."""

from __future__ import annotations

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_wordpiece(
    lines: list[str], folder: Path, max_length: int = 64
) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer with [CLS] and [SEP], as BERT's."""
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    raw.train_from_iterator(
        lines, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=SPECIAL)
    )
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def train_bytelevel(lines: list[str], max_length: int = 64) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer as GPT-2's: no pad token, no special tokens around a text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=max_length, eos_token="<|endoftext|>"
    )


def _bert(vocabulary: int, seed: int) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return BertModel(config).eval()


def save_transformer(folder: Path, tokenizer, seed: int) -> BertModel:
    """A plain transformers checkpoint, without any pooling configuration."""
    model = _bert(len(tokenizer), seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def save_mpnet(folder: Path, tokenizer, seed: int) -> MPNetModel:
    """A plain MPNet checkpoint, the architecture of the paper's released pair."""
    torch.manual_seed(seed)
    config = MPNetConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=80,
    )
    model = MPNetModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def save_gpt2(folder: Path, tokenizer, seed: int) -> GPT2Model:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2Model(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def save_sentence_transformer(folder: Path, tokenizer, seed: int) -> None:
    """A sentence-transformers folder that states its own mean pooling."""
    plain = folder.parent / f"{folder.name}-plain"
    save_transformer(plain, tokenizer, seed)
    transformer = Transformer(str(plain))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
