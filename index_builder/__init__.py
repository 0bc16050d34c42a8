"""Encode a corpus into a store; installed as `descsim_tools.index_builder`."""

from descsim_tools.index_builder.corpus import Corpus, Row, open_corpus
from descsim_tools.index_builder.fill import fill
from descsim_tools.index_builder.report import FillReport
from descsim_tools.index_builder.sentences import OnLong

__all__ = ["Corpus", "FillReport", "OnLong", "Row", "fill", "open_corpus"]
