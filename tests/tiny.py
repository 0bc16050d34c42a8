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
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from descsim_tools.rerankers.cross_encoder import new_cross_encoder

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
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
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


def save_cross_encoder(folder: Path, tokenizer, seed: int) -> None:
    """A sentence-transformers cross-encoder of one label, of pairs of at most 64 tokens."""
    plain = folder.parent / f"{folder.name}-plain"
    save_transformer(plain, tokenizer, seed)
    torch.manual_seed(seed)
    model = new_cross_encoder(Transformer(str(plain)))
    with torch.no_grad():
        for parameter in model[2].parameters():  # random weights hardly move an untrained head
            parameter.normal_()
    model.save_pretrained(str(folder), create_model_card=False)


# --- causal language models -------------------------------------------------------------------


def train_metaspace(lines: list[str]) -> PreTrainedTokenizerFast:
    """A BPE tokenizer as LLaMA's: BOS, and a space of its own before a text's first word."""
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    raw.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    raw.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1500, special_tokens=special))
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def train_bytelevel_with_bos(lines: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with BOS and a pad token, as Gemma's."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator(lines, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )


def gpt2_lm(vocabulary: int, positions: int = 128) -> PreTrainedModel:
    """Learned positions, no BOS."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=positions,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _sharp(GPT2LMHeadModel(config))


def llama_lm(vocabulary: int) -> PreTrainedModel:
    """Rotary positions."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return _sharp(LlamaForCausalLM(config))


def gemma3_lm(vocabulary: int) -> PreTrainedModel:
    """Rotary positions, a sliding window of 8 tokens in every other layer, capped logits."""
    config = Gemma3TextConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=5.0,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return _sharp(Gemma3ForCausalLM(config))


def _sharp(model: PreTrainedModel) -> PreTrainedModel:
    """Give random weights that make a token's probability depend on all tokens before it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                scale = 1.0 if "embed" in name or "wte" in name else 0.4
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()
