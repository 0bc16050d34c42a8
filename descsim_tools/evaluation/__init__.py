"""Evaluation: the paper's protocol, group accuracy, sentence similarity, and how vectors spread."""

from descsim_tools.evaluation.protocol import (
    EncoderScore,
    EvalItem,
    Score,
    evaluate_file,
    evaluate_groups,
    group_accuracy,
    read_items,
)

__all__ = [
    "EncoderScore",
    "EvalItem",
    "Score",
    "evaluate_file",
    "evaluate_groups",
    "group_accuracy",
    "read_items",
]
