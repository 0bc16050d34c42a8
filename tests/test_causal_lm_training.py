"""Training a language model for the log-probability reranker, on tiny seeded ones."""

import json

import numpy as np
import pytest
import torch

from descsim_tools.rerankers import LogProbReranker
from descsim_tools.training.config import ConfigError, PairsConfig, load_config
from descsim_tools.training.data import read_groups, write_groups
from descsim_tools.training.kinds import run
from descsim_tools.training.losses import ListLoss
from descsim_tools.training.pairs import draw_pairs
from tests.conftest import ROOT
from tests.tiny import gemma3_lm, train_bytelevel_with_bos

FOLDER = ROOT / "examples/training"


@pytest.fixture(scope="module")
def groups():
    return read_groups(FOLDER / "open-groups.jsonl.gz")[:4]


@pytest.fixture(scope="module")
def base(corpus_lines, tmp_path_factory):
    """Gemma 3 in small, with input and output embeddings tied, as the real one has them."""
    folder = tmp_path_factory.mktemp("models") / "tiny-gemma"
    tokenizer = train_bytelevel_with_bos(corpus_lines)
    gemma3_lm(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def config(groups, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal")
    write_groups(groups, folder / "train.jsonl")
    path = folder / "lm.toml"
    path.write_text(
        'name = "tiny-lm"\nkind = "causal-lm"\n[data]\ntrain = ["train.jsonl"]\n'
        f'dev = ["train.jsonl"]\n[model]\nbase = {json.dumps(str(base))}\nmethod = "lora"\n'
        '[loss]\nname = "list"\npair_weight = 0.0\nboth_ways = false\n'
        '[pairs]\nmined = 0\nprompt = "describe"\n'
        '[training]\nepochs = 8\ngroups_per_batch = 4\nlearning_rate = 3e-3\nprecision = "fp32"\n'
    )
    return path


def test_the_ready_configuration_is_valid():
    config = load_config(FOLDER / "gemma3-270m-lora.toml")
    assert (config.kind, config.model.method) == ("causal-lm", "lora")


def test_training_raises_what_fits(config, groups, base, tmp_path):
    result = run(load_config(config), tmp_path)
    assert "train_group_accuracy" in result.metrics
    trained, before = (
        LogProbReranker.load(folder, prompt="describe", device="cpu")
        for folder in (tmp_path / "model", base)
    )

    batch = draw_pairs([(g, i) for i, g in enumerate(groups)], PairsConfig(mined=0), {})
    loss = ListLoss(pair_weight=0, both_ways=False)

    def lost(reranker):
        scores = reranker.score_many([(d, [s]) for d, s in batch.pairs])
        return float(loss(batch.scored(torch.tensor(np.concatenate(scores)))))

    assert lost(trained) < lost(before) - 0.3


def test_only_lora_is_offered(config, tmp_path):
    path = config.parent / "full.toml"
    path.write_text(config.read_text().replace('method = "lora"', 'method = "full"'))
    with pytest.raises(ConfigError, match="a causal-lm is trained by 'lora'"):
        run(load_config(path), tmp_path)
