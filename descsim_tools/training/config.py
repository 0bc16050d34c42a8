"""The configuration of a training run, a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from descsim_tools.encoders import Pooling
from descsim_tools.errors import DescsimError


class ConfigError(DescsimError):
    """A training configuration is missing, or a setting is unknown or not allowed."""


def diverged(how: str) -> ConfigError:
    """Return the error of a run whose numbers are none any more."""
    return ConfigError(
        f"the training diverged: {how}. Lower training.learning_rate, and check the loss's settings"
    )


_Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(_Section):
    """Files; paths are relative to the configuration's folder.

    Attributes:
        train: Files of groups, or of any form that `read_groups` knows.
        dev: Files of the eval form, or of groups; measured after each epoch. Their figures bear
            their names, without .jsonl.
        leave_out: Groups whose id begins with one of these are not trained on.
    """

    train: list[Path] = Field(min_length=1)
    dev: list[Path] = []
    leave_out: list[str] = []


class ModelConfig(_Section):
    """What is trained.

    Attributes:
        base: Preset, folder or hub id that both sides start from.
        sides: `pair` trains a description encoder and a sentence encoder, `shared` one for both.
        pooling: For a base that does not state its own.
        brackets: Put [description] and {sentence} around the tokens, as SGPT does.
        method: `full`; `lora`; `bitfit`, bias terms only; `last-layer`.
        freeze_embeddings: Leave token embeddings as they are (`full` only).
        lora_rank: Of the low-rank updates (`lora` only).
    """

    base: str = "all-minilm-l6-v2"
    sides: Literal["pair", "shared"] = "pair"
    pooling: Pooling | None = None
    brackets: bool = False
    method: Literal["full", "lora", "bitfit", "last-layer"] = "full"
    freeze_embeddings: bool = True
    lora_rank: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _of_other_methods(self) -> ModelConfig:
        """Refuse settings that the method does not read."""
        if self.method != "lora" and "lora_rank" in self.model_fields_set:
            raise ValueError(f'lora_rank is of method = "lora", got method = "{self.method}"')
        if self.method != "full" and not self.freeze_embeddings:
            raise ValueError(
                f'method = "{self.method}" leaves the token embeddings as they are, got '
                "freeze_embeddings = false"
            )
        return self


class LossConfig(BaseModel):
    """A loss of `descsim_tools.training.losses` by name; further settings are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "group"

    @property
    def settings(self) -> dict[str, Any]:
        """The loss's own arguments."""
        return dict(self.model_extra or {})


class TrainingConfig(_Section):
    """How it is trained.

    Attributes:
        epochs: Passes over the groups; in each, every cluster gives newly drawn texts.
        groups_per_batch: Groups whose clusters compete in one step.
        accumulate: Batches whose gradients make one step.
        learning_rate: Highest; falls linearly to 0.
        warmup_share: Share of the steps in which it rises.
        weight_decay: 0 makes AdamW the paper's Adam.
        sentences_per_cluster: Drawn each time.
        descriptions_per_cluster: Drawn each time.
        twins_per_cluster: Descriptions drawn each time for the sentence encoder, as negatives.
        tokens_per_pass: Most tokens of one forward pass, padding included.
        precision: `auto` is bf16 where the hardware multiplies it (GPUs; CPUs with AMX or
            AVX512-BF16), else fp32.
        seed: Of all that is drawn.
        average: Trained this many times, with seeds from `seed` on, and the weights averaged.
        base_share: Of the base's own weights in the resulting description encoder and in the
            sentence encoder, the rest being the mean of the runs.
    """

    epochs: float = Field(default=2, gt=0)
    groups_per_batch: int = Field(default=48, ge=2)
    accumulate: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    sentences_per_cluster: int = Field(default=1, ge=1)
    descriptions_per_cluster: int = Field(default=1, ge=1)
    twins_per_cluster: int = Field(default=1, ge=0)
    tokens_per_pass: int = Field(default=2048, ge=64)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: int = 0
    average: int = Field(default=1, ge=1)
    base_share: tuple[_Share, _Share] = (0.0, 0.0)


class PairsConfig(_Section):
    """Which (description, sentence) pairs a model that scores them is trained on.

    Attributes:
        sentences_per_group: Drawn each time, spread over the clusters, at least one of each; every
            drawn description of the group is paired with all of them.
        twins: Other descriptions of the same cluster, paired as sentences that do not fit.
        mined: Sentences of other groups that `mined_by` ranks high for a description.
        mined_by: Preset or folder of an encoder; a loss with `distill` learns from its cosines.
        mined_ranks: First and last rank to draw them from. The very first are left out, since a
            sentence of another group may fit by chance.
        prompt: Of a causal language model, a name or template of `descsim rerank prompts`.
    """

    sentences_per_group: int = Field(default=4, ge=2)
    twins: int = Field(default=1, ge=0)
    mined: int = Field(default=2, ge=0)
    mined_by: str = "descsim-minilm"
    mined_ranks: tuple[int, int] = (5, 50)
    prompt: str = "describe-abstract"

    @field_validator("mined_ranks")
    @classmethod
    def _rising(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= ranks[0] <= ranks[1]:
            raise ValueError(f"got {list(ranks)}, need two ranks from 1 up, the lower one first")
        return ranks


class MapsConfig(_Section):
    """What only the kind `maps` has.

    Attributes:
        sides: `both`, or `description` to leave the sentences' vectors as the base gives them.
        dev_every: Epochs between two measurements of the dev files.
    """

    sides: Literal["both", "description"] = "both"
    dev_every: int = Field(default=5, ge=1)


_NOT_OF_MAPS = {
    "model": ModelConfig.model_fields.keys() - {"base", "pooling"},
    "training": {"accumulate", "tokens_per_pass", "precision", "average", "base_share"},
}
_NOT_OF_PAIR_SCORERS = {
    "model": {"sides", "brackets"},
    "training": {
        "average",
        "base_share",
        "sentences_per_cluster",
        "descriptions_per_cluster",
        "twins_per_cluster",
    },
}
"""Settings, by section, that have no meaning for a kind."""


class TrainConfig(_Section):
    """One training run.

    Attributes:
        name: Of what is trained.
        kind: `encoder`, an encoder's weights (a pair or one shared); `maps`, linear maps over its
            vectors; `cross-encoder`, which scores pairs of texts; or `causal-lm`, a language model
            for the log-probability reranker, which scores pairs too.
        data: Files.
        model: What is trained.
        loss: What is minimised.
        training: How.
        pairs: Of the kinds that score pairs.
        maps: For the kind `maps`.
    """

    name: str
    kind: Literal["encoder", "maps", "cross-encoder", "causal-lm"] = "encoder"
    data: DataConfig
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    pairs: PairsConfig = PairsConfig()
    maps: MapsConfig = MapsConfig()

    @property
    def is_average(self) -> bool:
        """Whether the result is a mean of runs, or of a run and its base."""
        return self.training.average > 1 or any(self.training.base_share)

    @model_validator(mode="after")
    def _without_effect(self) -> TrainConfig:
        """Refuse settings that the kind does not read."""
        if self.model.sides == "shared" and self.model.brackets:
            raise ValueError(
                "model.brackets read each side with tokens of its own, which are two encoders; set "
                'model.sides to "pair"'
            )
        share = self.training.base_share
        if self.model.sides == "shared" and share[0] != share[1]:
            raise ValueError(f"training.base_share is {list(share)}, need equal ones: one encoder")
        if self.kind != "maps" and "maps" in self.model_fields_set:
            raise ValueError('a table [maps] needs kind = "maps"')
        if self.kind in ("encoder", "maps") and "pairs" in self.model_fields_set:
            raise ValueError('a table [pairs] needs kind = "cross-encoder" or "causal-lm"')
        unread = {"maps": _NOT_OF_MAPS, "encoder": {}}.get(self.kind, _NOT_OF_PAIR_SCORERS)
        for section, names in unread.items():
            unused = sorted(getattr(self, section).model_fields_set & names)
            if unused:
                kind = f'kind = "{self.kind}"'
                raise ValueError(f"{kind} has no use for {section}.{', '.join(unused)}")
        return self


def load_config(path: str | Path) -> TrainConfig:
    """Read a configuration and make its paths absolute.

    Raises:
        ConfigError: It is missing, no TOML, or a setting is unknown or not allowed.
    """
    path = Path(path)
    return parse_config(read_toml(path), path.parent, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file.

    Raises:
        ConfigError: It is missing or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def parse_config(content: dict[str, Any], folder: Path, where: str) -> TrainConfig:
    """Check a configuration that was read already.

    Args:
        content: Its tables.
        folder: That its paths are relative to.
        where: Its name for messages.

    Raises:
        ConfigError: A setting is unknown or not allowed.
    """
    if "ablate" in content:
        raise ConfigError(f"{where} has settings to compare: run `descsim train ablate`")
    try:
        config = TrainConfig.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise ConfigError(f"{where}: {problems}") from error
    data = config.data.model_copy(
        update={
            "train": [folder / file for file in config.data.train],
            "dev": [folder / file for file in config.data.dev],
        }
    )
    return config.model_copy(update={"data": data})
