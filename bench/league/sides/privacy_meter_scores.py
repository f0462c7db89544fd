"""Privacy Meter's RMIA, LOSS and ROC (MIT) on signals that are given: its functions run as they are.

``job["source"]`` is a checkout of privacytrustlab/ml_privacy_meter.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
from exchange import answer, asked, timed

job, arrays = asked()
sys.path[:0] = [job["source"]]
rmia: Any = importlib.import_module("modules.mia.attacks.rmia")
loss: Any = importlib.import_module("attacks")
audit: Any = importlib.import_module("audit")

scores, told = {}, {}
for name in job["sets"]:
    signals, memberships, losses = (arrays[f"{name}/{one}"] for one in ("signals", "memberships", "losses"))

    rest = (signals[:, 0], signals[:, 1:], memberships[:, 1:], signals[:, 0], signals[:, 1:], job["offline_a"], 1)
    found, seconds = timed(lambda given=rest: rmia.run_rmia(*given))
    by_loss = loss.run_loss(losses[:, 0])
    roc = audit.compute_attack_results(found, memberships[:, 0])
    scores |= {f"{name}/RMIA": found, f"{name}/LOSS": by_loss}
    told[name] = {"seconds": seconds, "auc": float(roc["auc"])}

bounds = [
    float(audit.get_eps_audit(m, r, v, job["delta"], job["error"])) for m, r, v in job["counts"]
]  # fmt: skip
optimal: list[float] = []
for name in job["canaries"]:
    found = audit.compute_abstain_attack_results(
        arrays[f"{name}/scores"], arrays[f"{name}/coins"].astype(np.int64), job["delta"], job["error"]
    )
    optimal.append(float(found["eps_opt"]))
answer({"sets": told, "bounds": bounds, "optimal": optimal}, scores)
