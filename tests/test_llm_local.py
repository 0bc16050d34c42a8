"""A real local model behind `transformers serve`: its text is poor, and is survived."""

import json

import pytest

from descsim_tools.agents.answers import Status
from descsim_tools.agents.chat import Chatbot
from descsim_tools.agents.rag import RagAnswerer
from descsim_tools.datagen.generate import generate, open_llm
from descsim_tools.datagen.recipes import DescriptionsRecipe
from descsim_tools.llm import LLM, CutError

pytestmark = pytest.mark.slow  # the servers take their time to start


def test_a_real_server_is_asked(tiny_server, tmp_path):
    url, model = tiny_server
    with LLM(model, base_url=url, max_tokens=12, transcript=tmp_path / "t.jsonl") as llm:
        with pytest.raises(CutError):
            llm.complete("Name a river.")
        assert llm.spent.tokens_out == 12
        assert 0 < llm.spent.tokens_in < 100
        assert llm.spent.unsettled == 0
    entry = json.loads((tmp_path / "t.jsonl").read_text())
    assert entry["finish_reason"] == "length"
    assert entry["content"]


def test_generation_survives_a_model_that_babbles(tiny_server, corpus_lines, tmp_path):
    """This server takes a schema and ignores it, so that only our own validation stands."""
    url, model = tiny_server
    with open_llm(tmp_path, model, base_url=url, max_tokens=16) as llm:
        report = generate(DescriptionsRecipe(), corpus_lines[:3], tmp_path, llm)
    assert report.complete
    assert report.written == 0
    assert sum(report.rejected.values()) == report.sources == 3
    assert set(report.rejected) <= {"cut", "invalid"}
    assert report.tokens_out >= 48
    entries = [json.loads(line) for line in (tmp_path / "transcript.jsonl").open()]
    assert len(entries) == llm.spent.requests
    assert all("error" not in entry for entry in entries)


def test_questions_to_a_model_that_babbles_get_a_status(tiny_server, tiny_index):
    url, model = tiny_server
    with LLM(model, base_url=url, max_tokens=16, attempts=1) as llm:
        answerer = RagAnswerer(tiny_index, llm, k=3)
        answers = [answerer.answer("Do any animals get drunk?"), Chatbot(answerer).ask("Hello!")]
        assert llm.spent.tokens_out > 0
    for answer in answers:
        assert isinstance(answer.status, Status)
        assert answer.text
        assert answer.requests > 0
        assert all(c.text[slice(*c.span)] == c.quote for c in answer.citations)
        assert (answer.status is Status.ANSWERED) == bool(answer.citations)
