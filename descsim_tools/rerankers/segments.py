"""How the two texts of a pair are compared once they were read together."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.modules import Dense, Module
from torch import Tensor, nn

from descsim_tools.errors import RerankerError


class SegmentPooling(Module):
    """Pools each text of a pair by itself, and compares the two.

    With u and v the means of the description's and the sentence's token vectors, scaled to a mean
    square of 1, it gives [u, v, u * v, |u - v|], (n, 4 x dim), after InferSent (Conneau et al.,
    EMNLP 2017), whose u and v were read apart. A head that begins as the sum of u * v starts from
    what an encoder knows about similarity; one linear layer over the mean of all tokens starts from
    nothing, and stays there for a whole epoch.
    """

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, (n, 4 x dim).

        Raises:
            RerankerError: The tokenizer does not tell the texts of a pair apart.
        """
        if "token_type_ids" not in features:
            raise RerankerError("the tokenizer gives no token_type_ids; take a BERT-like base")
        real = features["attention_mask"].bool()
        second = features["token_type_ids"].bool()
        tokens = features["token_embeddings"]
        u, v = _mean(tokens, real & ~second), _mean(tokens, real & second)
        features["sentence_embedding"] = torch.cat([u, v, u * v, (u - v).abs()], dim=1)
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the configuration; there are no weights."""
        self.save_config(output_path)


def similarity_head(dim: int, scale: float = 12.0) -> Dense:
    """Return a linear layer over `SegmentPooling` that begins as scale x (cosine - 0.4)."""
    head = Dense(4 * dim, 1, activation_function=nn.Identity(), module_output_name="scores")
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.weight[0, 2 * dim : 3 * dim] = scale / dim
        head.linear.bias.fill_(-0.4 * scale)
    return head


def _mean(tokens: Tensor, chosen: Tensor) -> Tensor:
    mean = (tokens * chosen[..., None]).sum(1)
    scaled: Tensor = nn.functional.normalize(mean.float(), dim=1) * tokens.shape[-1] ** 0.5
    return scaled
