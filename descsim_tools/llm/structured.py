"""Structured output: what to ask a server for, and how to read what comes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from descsim_tools.llm.errors import InvalidError

T = TypeVar("T", bound=BaseModel)

_THOUGHT = re.compile(r"<(think|thinking|reasoning|thought)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_HALF = re.compile(r"[\ud800-\udfff]")
_THOUGHT_END = re.compile(r"</(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_THOUGHT_BEGIN = re.compile(r"<(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
# What strict mode does not know; it is checked here instead.
_NOT_STRICT = ("default", "title", "minLength", "maxLength", "format")


class OutputMode(StrEnum):
    """How a server is asked for JSON, from the strictest to what every server understands."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    TEXT = "text"


def response_format(mode: OutputMode, schema: type[BaseModel]) -> dict[str, Any] | None:
    """Return the `response_format` of a request, or None for plain text."""
    if mode is OutputMode.TEXT:
        return None
    if mode is OutputMode.JSON_OBJECT:
        return {"type": "json_object"}
    strict = _strict(schema.model_json_schema())
    wrapped = {"name": schema.__name__, "strict": True, "schema": strict}
    return {"type": "json_schema", "json_schema": wrapped}


def instruction(schema: type[BaseModel]) -> str:
    """Return the sentence that asks for the schema in words."""
    text = json.dumps(_strict(schema.model_json_schema()), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{text}"


def without_thoughts(text: str) -> str:
    """Drop what a model wrote as thoughts, also when their beginning or end is missing.

    A text that begins as an object has none: there such a tag stands in a string.
    """
    if text.lstrip().startswith("{"):
        return text.strip()
    text = _THOUGHT.sub("", text)
    text = _THOUGHT_END.split(text)[-1]
    return _THOUGHT_BEGIN.split(text)[0].strip()


def parse(text: str, schema: type[T]) -> T:
    """Find the JSON that fits a schema in a model's text, past thoughts, fences and talk.

    Raises:
        InvalidError: There is none; the message says what is wrong with the most likely one.
    """
    problem = "it holds no JSON object"
    for candidate in _objects(without_thoughts(text)):
        try:
            return schema.model_validate(candidate)
        except ValidationError as error:
            problem = _described(error)
    raise InvalidError(f"the output does not fit: {problem}", text)


def well_formed(value: Any) -> Any:
    r"""Return a JSON value with U+FFFD for halves of characters, which no UTF-8 text can hold.

    JSON may name such a half, as in "\ud800", and models do.
    """
    return json.loads(_HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False)))


def _objects(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects in a text, in order."""
    decoder = json.JSONDecoder()
    position = text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
            value = well_formed(value)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield value
        position = text.find("{", end)


def _described(error: ValidationError) -> str:
    problems = [
        f"{'.'.join(map(str, problem['loc'])) or 'the object'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)
    ]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


def _strict(schema: Any) -> Any:
    """Make a schema as strict mode wants it: nothing optional, nothing beside what is named."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        # Under `properties` the keys are names of fields, which may be called `title`.
        key: {name: _strict(field) for name, field in value.items()}
        if key in ("properties", "$defs")
        else _strict(value)
        for key, value in schema.items()
        if key not in _NOT_STRICT
    }
    if made.get("type") == "object":
        made["additionalProperties"] = False
        made["required"] = list(made.get("properties", {}))
    return made
