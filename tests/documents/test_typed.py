"""Settings from Python: each is of the type that its field says, or a sentence says what was expected."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import docleak
from docleak.documents.typed import typed
from docleak.errors import DocleakError
from docleak.metrics.ocr import Reading
from docleak.studies.given import configured
from docleak.studies.gradient.config import Exposure, GradientConfig
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.registry import load_study

Wrong = list[tuple[str, dict[str, Any], str]]
WRONG: Wrong = [
    ("gradient", {"stages": "vision"}, "stages is 'vision'; expected a list or tuple of some of 'vision', 'text'"),
    ("gradient", {"stages": ["vison"]}, r"stages is \['vison'\]; expected a list or tuple of some of 'vision'"),
    ("gradient", {"recover_text": "no"}, "recover_text is 'no'; expected True or False"),
    ("gradient", {"question_known": 0}, "question_known is 0; expected True or False"),
    ("gradient", {"gradient_file": 3}, "gradient_file is 3; expected a text or None"),
    ("gradient", {"exposure": {}}, r"exposure is \{\}; expected Exposure"),
    ("gradient", {"exposure": Exposure(stages="vision")}, "exposure.stages is 'vision'; expected"),  # type: ignore[arg-type]
    ("gradient", {"pages": True}, "pages is True; expected a whole number"),
    ("gradient", {"pages": 2.0}, r"pages is 2\.0; expected a whole number"),
    ("gradient", {"models": "donut-start"}, "models is 'donut-start'; expected a list or tuple of texts"),
    ("gradient", {"image_size": (32.5, 64)}, "image_size is .*; expected a list or tuple of 2 whole numbers or None"),
    ("gradient", {"ocr": None}, "ocr is None; expected a text"),
    ("updates", {"steps": 1}, "steps is 1; expected a list or tuple of whole numbers"),
    ("updates", {"clients": "a=b"}, "clients is 'a=b'; expected a list or tuple of texts"),
    ("updates", {"local": {"optimiser": "sgd"}}, "local is {'optimiser': 'sgd'}; expected a text"),
    ("weights", {"task": "mml"}, "task is 'mml'; expected one of 'mlm', "),
    ("weights", {"candidates": "12"}, "candidates is '12'; expected a whole number"),
    ("weights", {"tuning": "x"}, "tuning is 'x'; expected Tuning or None"),
    ("answers", {"releases": "a", "division": "b"}, "releases is 'a'; expected a list or tuple of Release"),
    ("pairs", {"threshold": "x"}, "threshold is 'x'; expected a number or None"),
    ("servers", {"servers": "imprint"}, "servers is 'imprint'; expected a list or tuple of names or objects"),
    ("training", {"epochs": "3"}, "epochs is '3'; expected a whole number"),
    ("defences", {"pages": "2"}, "pages is '2'; expected a whole number"),
]


@pytest.mark.parametrize(("kind", "settings", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_a_setting_of_another_type_is_refused(kind: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DocleakError, match=said):
        configured(load_study(kind).Config, settings, what="a study")


def test_numbers_of_numpy_and_paths_are_kept_as_python_s() -> None:
    one = {"models": ["donut-start"], "gradient_file": Path("a")}
    given: dict[str, Any] = {"pages": np.int64(1), "image_size": [np.int32(64), 32], **one}
    made = configured(GradientConfig, given, what="a study")
    assert made.image_size == (64, 32) and made.exposure.gradient_file == "a"
    assert {type(number) for number in (made.pages, *made.image_size)} == {int}
    weights: Any = configured(load_study("weights").Config, {"ipf_epsilon": np.float32(0.03125)}, what="a study")
    assert type(weights.ipf_epsilon) is float
    settings = docleak.TrainingSettings(rounds=np.int64(2), learning_rate=np.float64(0.1))  # type: ignore[arg-type]
    assert (type(settings.rounds), type(settings.learning_rate)) == (int, float)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rounds": "2"}, "rounds is '2'; expected a whole number"),
        ({"max_steps": True}, "max_steps is True; expected a whole number"),
        ({"model": None}, "model is None; expected a text"),
        ({"epsilon": "8"}, "epsilon is '8'; expected a number or None"),
    ],
)
def test_settings_of_a_training_are_checked_alike(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match=said):
        docleak.TrainingSettings(**settings)
    if "model" not in settings:
        with pytest.raises(DocleakError, match=said):
            docleak.train(silos=2, out=tmp_path / "run", **settings)


def test_a_study_s_own_configuration_is_checked_too(tmp_path: Path) -> None:
    config = GradientConfig(models=("layoutlmv3-start",), exposure=Exposure(train_mode="no"))  # type: ignore[arg-type]
    with pytest.raises(DocleakError, match=r"exposure\.train_mode is 'no'; expected True or False"):
        docleak.audit(study=GradientStudy(config), out=tmp_path / "run")


class Engine:
    """A reader of one's own."""

    name, version = "mine", "1"

    def read(self, crops: Any) -> list[Reading]:
        return [Reading("x", 1.0) for _ in crops]


def test_a_reader_may_be_an_object_as_attacks_may(tmp_path: Path) -> None:
    how: dict[str, Any] = {"attacks": "random", "budget": 1, "seed": 1}
    read = docleak.audit("donut-start", "synthetic", ocr=Engine(), out=tmp_path / "run", **how)
    assert set(read.to_frame()["score.engine"]) == {"mine 1"}


@dataclass(frozen=True)
class Bare:
    """Annotations that say nothing of their items."""

    table: dict = field(default_factory=dict)  # type: ignore[type-arg]
    several: tuple = ()  # type: ignore[type-arg]
    old: typing.Dict = field(default_factory=dict)  # type: ignore[type-arg]  # noqa: UP006
    on: bool = False


def test_bare_types_ask_for_nothing_of_their_items() -> None:
    given = {"table": {"a": 1}, "several": (1, "b"), "old": {"a": 1}, "on": np.True_}
    assert typed(Bare, given, what="it") == {**given, "on": True}
    with pytest.raises(DocleakError, match=r"old is 3; expected a dict"):
        typed(Bare, {"old": 3}, what="it")
