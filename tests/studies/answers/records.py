"""Records of releases with numbers that tests choose."""

from __future__ import annotations

from typing import Any

from docleak.metrics.estimate import Estimate


def found(numbers: dict[str, dict[str, Estimate]], **more: Any) -> dict[str, Any]:
    """What a record holds of a measure."""
    said = {part: {name: number.to_json() for name, number in of.items()} for part, of in numbers.items()}
    return {"numbers": said, "remarks": {}, **more}


def record(
    memory_low: float, accuracy_low: float, gap_low: float, *, memory: float = 0.05, memory_high: float = 0.1,
    most: float = 0.74, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A release's numbers, of which the lower ends of three are given."""

    def share(value: float, low: float, high: float) -> Estimate:
        return Estimate(value, low, high, 40, 20)

    both = {f"{side}_acc": share(0.3, 0.2, 0.4) for side in ("positive", "negative")}
    attack = {
        "accuracy_s0": share(0.7, accuracy_low, most), "auc": Estimate.exactly(0.6),
        "chance_s0": Estimate.exactly(0.5),
        "epsilon_measured": Estimate.exactly(0.0),
    }  # fmt: skip
    member = found({"AZK": attack})
    return {
        "label": "x", "control": False,
        "membership": {**member, "remarks": {"Measured": "x"}, "members": 20, "others": 20},
        "bill": {"epsilon": None, "delta": None, "claim": ""},
        "gap": found({"": {"gap_acc": share(0.1, gap_low, 0.3), "gap_anls": share(0.1, gap_low, 0.3)}}),
        "memorisation": found({"provider_name": {**both, "gap_acc": share(memory, memory_low, memory_high)}}), **more,
    }  # fmt: skip
