"""Build a sentence-transformers model from an `EncoderSpec`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Module,
    Normalize,
    Router,
    Transformer,
)
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from descsim_tools.encoders.delta import merge_delta
from descsim_tools.encoders.maps import map_modules
from descsim_tools.encoders.presets import EncoderSpec, Pooling
from descsim_tools.encoders.weights import find_map, find_model, find_shipped
from descsim_tools.errors import EncoderError
from descsim_tools.quiet import quiet_loading

_POOLING_MODES = {
    Pooling.MEAN: "mean",
    Pooling.MEAN_WITHOUT_FIRST: "mean",
    Pooling.WEIGHTED_MEAN: "weightedmean",
    Pooling.CLS: "cls",
    Pooling.LAST_TOKEN: "lasttoken",
}


def build_model(spec: EncoderSpec) -> SentenceTransformer:
    """Load both sides on the CPU and join them.

    A shared model stays a plain `SentenceTransformer`; a pair becomes a `Router` with a query and a
    document route. Maps come last, in a `Router` of their own, so that the sides go on sharing what
    is before them. Either way `encode_query` reads descriptions and `encode_document` sentences.
    """
    with quiet_loading():
        sentence_folder = find_model(spec.sentence_model)
        if spec.delta is not None:
            model = _tuned_pair(spec)
        elif spec.description_model is not None or spec.description_brackets is not None:
            description_folder = find_model(spec.description_model or spec.sentence_model)
            router = Router.for_query_document(
                query_modules=_side(description_folder, spec.pooling, spec.description_brackets),
                document_modules=_side(sentence_folder, spec.pooling, spec.sentence_brackets),
            )
            model = SentenceTransformer(modules=[router], device="cpu")
        elif _states_pooling(sentence_folder):
            _check_pooling(sentence_folder, spec.pooling)
            model = SentenceTransformer(str(sentence_folder), device="cpu", local_files_only=True)
        else:
            modules = _side(sentence_folder, spec.pooling, None)
            model = SentenceTransformer(modules=[*modules], device="cpu")
    for key, prompt in (("query", spec.description_prompt), ("document", spec.sentence_prompt)):
        if prompt is not None:
            model.prompts[key] = prompt
    if spec.description_map is not None or spec.sentence_map is not None:
        _add_maps(model, spec)
    if spec.pooling is Pooling.MEAN_WITHOUT_FIRST:
        _leave_out_first_token(model, spec)
    return model.eval()


def _tuned_pair(spec: EncoderSpec) -> SentenceTransformer:
    """Load the base twice and merge what training changed of it."""
    folder = find_model(spec.sentence_model)
    sides = {side: _side(folder, spec.pooling, None) for side in ("query", "document")}
    transformers = {
        side: module.model
        for side, modules in sides.items()
        for module in modules
        if isinstance(module, Transformer)
    }
    merge_delta(transformers, find_shipped(spec.delta or ""))
    router = Router.for_query_document(
        query_modules=sides["query"], document_modules=sides["document"]
    )
    return SentenceTransformer(modules=[router], device="cpu")


def _add_maps(model: SentenceTransformer, spec: EncoderSpec) -> None:
    dim = model.get_embedding_dimension()
    if dim is None:
        raise EncoderError("the model does not state its dimension")
    query, document = (
        [*map_modules(find_map(name) if name is not None else None, int(dim))]
        for name in (spec.description_map, spec.sentence_map)
    )
    router = Router.for_query_document(query_modules=query, document_modules=document)
    model.append(router)


def _states_pooling(folder: Path) -> bool:
    return (folder / "modules.json").is_file()


def _check_pooling(folder: Path, pooling: Pooling | None) -> None:
    if _states_pooling(folder) and pooling is not None:
        raise EncoderError(
            f"{folder.name} states its own pooling, so pooling={pooling.value!r} cannot be asked "
            "for; leave it out"
        )
    if not _states_pooling(folder) and pooling is None:
        raise EncoderError(
            f"{folder.name} has no pooling configuration (no modules.json), and a wrong guess "
            f"would give wrong vectors without an error. Name it: {', '.join(Pooling)}."
        )


def _side(folder: Path, pooling: Pooling | None, brackets: tuple[str, str] | None) -> list[Module]:
    _check_pooling(folder, pooling)
    if pooling is None:
        loaded = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return cast("list[Module]", list(loaded))
    transformer = Transformer(str(folder))
    if brackets is not None:
        _put_brackets(transformer, brackets)
    pool = PoolingModule(transformer.get_embedding_dimension(), _POOLING_MODES[pooling])
    return [transformer, pool, Normalize()]


def _put_brackets(transformer: Transformer, brackets: tuple[str, str]) -> None:
    """Put a token before and after each text once it is tokenized, so that none merges with it."""
    tokenizer = tokenizer_of(transformer)
    ids = []
    for bracket in brackets:
        tokens = tokenizer.encode(bracket, add_special_tokens=False)
        if len(tokens) != 1:
            raise EncoderError(f"the tokenizer has no single token for the bracket {bracket!r}")
        ids.append(tokens[0])
    left, right = brackets
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{left} $A {right}",
        special_tokens=[(left, ids[0]), (right, ids[1])],
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def _leave_out_first_token(model: SentenceTransformer, spec: EncoderSpec) -> None:
    """Keep the first token out of the mean with sentence-transformers' own prompt exclusion.

    A prompt of one space adds no token to a BERT-like tokenizer, so "the prompt" is the leading
    special token alone. The result is an ordinary model that loads anywhere, without code of ours.
    """
    if spec.description_prompt or spec.sentence_prompt:
        raise EncoderError(f"pooling {spec.pooling} and a prompt exclude each other")
    for module in model.modules():
        if isinstance(module, PoolingModule):
            module.include_prompt = False
        elif isinstance(module, Transformer):
            if len(tokenizer_of(module)(" ")["input_ids"]) != 2:
                raise EncoderError(
                    "mean-without-first needs a tokenizer that puts one special token before and "
                    f"one after a text; that of {spec.name} does not"
                )
    model.prompts.update(query=" ", document=" ")


def tokenizer_of(transformer: Transformer) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a text model.

    Raises:
        EncoderError: It has none.
    """
    if transformer.tokenizer is None:
        raise EncoderError("the model has no tokenizer, so it is no text encoder")
    return transformer.tokenizer
