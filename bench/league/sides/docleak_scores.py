"""docleak's scores of documents from losses that are given, and its bounds on epsilon."""

from __future__ import annotations

import numpy as np
from exchange import answer, asked, timed

from docleak.attacks.answers.documents import Asked, calibrated, informia, loss, reference_ratio, rmia
from docleak.privacy.empirical import Scores, from_one_run, lower_bound

job, arrays = asked()
delta, confidence = job["delta"], 1 - job["error"]
scores, told = {}, {}
for name in job["sets"]:
    document, losses, out = (arrays[f"{name}/questions/{one}"] for one in ("document", "losses", "out"))
    questions = [
        Asked(f"{number:04d}", str(key), float(of), 0.0, 0.0, 0, (float(reference),))
        for number, key, of, reference in zip(document, job["keys"][name], losses, out, strict=True)
    ]
    for score in (loss, reference_ratio, rmia, informia, calibrated):
        found, seconds = timed(lambda s=score, q=questions: s(q))
        scores[f"{name}/{score.__name__}"] = found
        told[f"{name}/{score.__name__}"] = seconds
bounds = [from_one_run(m, r, v, delta, confidence=confidence).epsilon for m, r, v in job["counts"]]
tightest = [
    lower_bound(Scores(arrays[f"{name}/scores"], arrays[f"{name}/coins"]), delta, confidence=confidence,
                rng=np.random.default_rng(0)).epsilon for name in job["canaries"]
]  # fmt: skip
answer({"seconds": told, "bounds": bounds, "optimal": tightest}, scores)
