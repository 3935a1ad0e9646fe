"""The model's files: found without being imported, believed only by their digests."""

import shutil
import sys
from pathlib import Path

import pytest

from fairlane import engines_embed, models
from fairlane.cli_services import parser
from fairlane.engines import make
from fairlane.errors import FairlaneError
from workers.engines.weights import TOKENIZER, WEIGHTS


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The tokenizer as it should be, other weights."""
    shutil.copy(models.folder() / TOKENIZER.name, tmp_path)
    (tmp_path / WEIGHTS.name).write_bytes(b"other weights")
    return tmp_path


def test_what_is_installed_is_right_and_never_imported() -> None:
    found = models.findings(models.folder())
    assert [finding.fault for finding in found] == ["", ""]
    assert [finding.path.name for finding in found] == [WEIGHTS.name, TOKENIZER.name]
    assert models.PACKAGE not in sys.modules


def test_each_file_has_its_own_finding(copied: Path) -> None:
    weights, tokenizer = models.findings(copied)
    assert f"{copied / WEIGHTS.name}: sha256 is " in weights.fault
    assert "make models" in weights.fault
    assert tokenizer.is_right
    (copied / TOKENIZER.name).unlink()
    assert "No such file" in models.findings(copied)[1].fault


def test_the_check_exits_by_what_it_found(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([]) == 0
    assert capsys.readouterr().out.count("is the file of all-MiniLM-L6-v2") == 2
    assert models.main([str(copied)]) == 1
    assert "sha256 is" in capsys.readouterr().err


def test_without_the_package_everybody_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "PACKAGE", "no_such_package_of_weights")
    assert models.installed() is None
    assert models.main([]) == 1
    assert "make models" in capsys.readouterr().err
    with pytest.raises(FairlaneError, match=r"not installed; `make models`.*--model PATH"):
        engines_embed.load()


def test_a_wrong_folder_is_an_error_of_the_command_line(copied: Path) -> None:
    given = parser().parse_args(
        ["worker", "--pool", "p", "--engine", "embed", "--model", str(copied)]
    )
    with pytest.raises(FairlaneError, match="sha256 is"):
        make(given)


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "workers.engines.embed", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FairlaneError, match=r"needs onnxruntime: pip install 'fairlane\[embed\]'"):
        engines_embed.load()


@pytest.mark.parametrize("threads", ["0", "-1", "257", "many"])
def test_threads_have_limits(threads: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["worker", "--pool", "p", "--threads", threads])
    assert "1..256" in capsys.readouterr().err
