"""Hashes of the files that a configuration names."""

import json
import os
from pathlib import Path

import pytest

from docleak.runs.identity import changed_sources, digest_of, sources_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "inner" / "page.png").write_bytes(b"page")
    return folder


def test_every_path_of_a_configuration_counts_wherever_it_stands(model: Path) -> None:
    config = {
        "models": (str(model), "donut-start"), "deep": {"a": [f"folder:{model}"]}, "number": 3, "none": None,
        "long": "x" * 5000, "nul": "a\0b", "file": model / "model.safetensors", "empty": "", "colon": "folder:",
    }  # fmt: skip
    sources = sources_of(config)
    assert set(sources) == {str(model), f"folder:{model}", str(model / "model.safetensors")}
    assert sources[str(model)] == sources[f"folder:{model}"] and all(len(value) == 10 for value in sources.values())


def test_a_folder_that_is_called_as_an_attack_is_not_the_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gi-dqa", "noise", "pages", "mine.py"):
        (tmp_path / name).mkdir()
    config = {"attack": "gi-dqa", "attacks": ["gi-dqa", "./mine.py:Mine"], "defenses": ["noise"], "documents": "pages"}
    assert set(sources_of(config)) == {"pages"}
    assert set(sources_of({**config, "attacks": ["./gi-dqa"]})) == {"pages", "./gi-dqa"}


def test_the_base_under_adapters_counts_whether_they_are_made_or_there(model: Path, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    asked = f"lora:{model},r=2,seed=0"
    before = sources_of({"model": asked, "models": (str(adapters),)})
    assert set(before) == {asked, str(adapters), str(model)}
    (model / "model.safetensors").write_bytes(b"other weights")
    after = sources_of({"model": asked, "models": (str(adapters),)})
    assert {name for name in before if before[name] != after[name]} == {asked, str(model)}


def test_content_and_names_count_and_times_do_not(model: Path) -> None:
    config = {"model": str(model)}
    seen = [sources_of(config)[str(model)]]
    os.utime(model / "model.safetensors", (1, 1))
    assert sources_of(config)[str(model)] == seen[0]
    (model / "model.safetensors").write_bytes(b"trained")  # of the same length
    seen.append(sources_of(config)[str(model)])
    (model / "inner" / "page.png").rename(model / "inner" / "other.png")
    seen.append(sources_of(config)[str(model)])
    (model / "new.json").write_bytes(b"")
    seen.append(sources_of(config)[str(model)])
    assert len(set(seen)) == 4
    (model / ".docleak-draft").write_bytes(b"hidden files are nobody's weights")
    assert sources_of(config)[str(model)] == seen[-1]


def test_the_folder_of_the_results_does_not_count(model: Path) -> None:
    config = {"documents": str(model), "out": str(model / "inner")}
    before = sources_of(config, apart_from=model / "inner")
    (model / "inner" / "run.json").write_bytes(b"{}")
    assert sources_of(config, apart_from=model / "inner") == before and set(before) == {str(model)}


def test_a_digest_tells_settings_and_their_files_apart(model: Path) -> None:
    config = {"model": str(model), "steps": 3}
    plain = digest_of({"model": "donut-start"})
    assert plain == "afadee11"  # of stores before: settings without files are called as they were
    first = digest_of(config)
    assert first != digest_of({**config, "steps": 4}) and len(digest_of(config, length=10)) == 10
    (model / "model.safetensors").write_bytes(b"trained")
    assert digest_of(config) != first


def test_files_count_in_the_order_of_the_parts_of_their_names(tmp_path: Path) -> None:
    for name in ("a/x", "a-b", "a.b/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert sources_of({"documents": str(tmp_path)}) == {str(tmp_path): "4dd54ee883"}


def test_what_changed_is_said_by_name() -> None:
    assert changed_sources({"a": "1"}, {"a": "1"}) == ""
    told = changed_sources({"a": "1", "b": "2"}, {"a": "3", "c": "4"})
    assert told.splitlines()[1:] == [
        "  - a: its files have the hash 1 there, 3 now",
        "  - b: its files have the hash 2 there, (none) now",
        "  - c: its files have the hash (none) there, 4 now",
    ]
