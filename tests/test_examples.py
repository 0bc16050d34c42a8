import re
import subprocess
import sys

from tests.conftest import ROOT


def test_the_demo_runs_and_shows_six_descriptions(tmp_path):
    result = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py", tmp_path / "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "912 sentences" in result.stdout
    assert result.stdout.count("plain similarity") == 6
    assert "substance abuse in animals" in result.stdout


def test_the_corpus_is_what_the_readme_says(corpus_lines):
    assert len(corpus_lines) == len(set(corpus_lines)) == 912
    assert all(8 <= len(line.split()) <= 35 for line in corpus_lines)


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks:
        result = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout


def test_the_readme_shows_the_two_commands_first():
    first_screen = "".join((ROOT / "README.md").read_text().splitlines(keepends=True)[:25])
    assert "make demo" in first_screen
    assert "make test" in first_screen
