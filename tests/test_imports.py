import subprocess
import sys

import pytest

import descsim_tools

HEAVY = ["torch", "transformers", "sentence_transformers", "chromadb", "sklearn", "langchain_core"]


def loaded_after(code: str, cwd) -> list[str]:
    program = f"import sys\n{code}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=cwd
    )
    return result.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "code",
    [
        "import descsim_tools",
        "import descsim_tools; descsim_tools.Hit; descsim_tools.DescsimError",
        "from descsim_tools.cli import main; main(['--help'])",
        "from descsim_tools.cli import main; main(['search', '--help'])",
        "from descsim_tools.cli import main; main(['encoders', '--json'])",
        "from descsim_tools.cli import main; main(['mcp', '--help'])",
        "from descsim_tools.cli import main; main(['chat', '--help'])",
        "from descsim_tools.cli import main; main(['find', '--help'])",
        "import descsim_tools.agents",
        "from descsim_tools.agents import FinderSettings, Statement, write_report",
        "import descsim_tools.agents.mcp_tool",
        "import descsim_tools.integrations",
        "from descsim_tools.integrations.mcp_server import create_server; create_server('store')",
        "from descsim_tools.cli import main; main(['rerank', 'prompts'])",
        "from descsim_tools.cli import main; main(['rerank', 'tune', '--help'])",
        "from descsim_tools.cli import main; main(['bench', 'rerank', '--help'])",
        "from descsim_tools.rerankers import PROMPTS, Reranker, load_reranker",
    ],
)
def test_nothing_heavy_is_imported(code, tmp_path):
    assert loaded_after(code, tmp_path) == []


def test_exports_are_all_there():
    for name in descsim_tools.__all__:
        assert getattr(descsim_tools, name) is not None
    assert set(dir(descsim_tools)) == set(descsim_tools.__all__)
    assert len(descsim_tools.__all__) <= 7


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        descsim_tools.nonsense  # noqa: B018
