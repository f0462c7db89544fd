"""Which test files stand beside which source file, and how many mutants are drawn of each."""

from __future__ import annotations

import math
from pathlib import Path

from scripts.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "docleak"
TESTS = ROOT / "tests"

#: Source file under src/docleak -> its mirrored test files under tests.
BESIDE: dict[str, tuple[str, ...]] = {
    "attacks/answers/asking.py": ("attacks/answers/test_asking.py",),
    "attacks/answers/disclosure.py": ("attacks/answers/test_memorisation.py",),
    "attacks/answers/features.py": ("attacks/answers/test_features.py",),
    "attacks/answers/membership.py": ("attacks/answers/test_membership.py",),
    "attacks/answers/memorisation.py": ("attacks/answers/test_memorisation.py",),
    "attacks/gradients/algebra/bag.py": ("attacks/test_bag.py",),
    "attacks/gradients/algebra/batch.py": ("attacks/test_batch.py",),
    "attacks/gradients/algebra/boxes.py": ("attacks/test_recover_layoutlmv3.py",),
    "attacks/gradients/algebra/donut.py": ("attacks/test_recover_donut.py",),
    "attacks/gradients/algebra/layernorm.py": ("attacks/test_recover_donut.py",),
    "attacks/gradients/algebra/layoutlmv3.py": ("attacks/test_recover_layoutlmv3.py",),
    "attacks/gradients/algebra/patches.py": ("attacks/test_patches.py", "attacks/test_recover_layoutlmv3.py"),
    "attacks/gradients/algebra/peeling.py": ("attacks/test_recover_donut.py",),
    "attacks/gradients/algebra/span.py": ("attacks/test_recover_layoutlmv3.py",),
    "attacks/gradients/algebra/subset_sums.py": ("attacks/test_recover_layoutlmv3.py",),
    "attacks/gradients/canvas.py": ("attacks/test_canvas.py",),
    "attacks/gradients/cleaning.py": ("attacks/test_cleaning.py",),
    "attacks/gradients/closed_form.py": ("attacks/test_closed_form.py",),
    "attacks/gradients/engine.py": ("attacks/test_engine.py",),
    "attacks/gradients/gi_dqa_joint.py": ("attacks/test_gi_dqa_joint.py",),
    "attacks/gradients/joint/drawing.py": ("attacks/test_joint_drawing.py",),
    "attacks/gradients/levenberg.py": ("attacks/test_levenberg.py",),
    "attacks/gradients/linearised.py": ("attacks/test_levenberg.py",),
    "attacks/gradients/local_steps.py": ("attacks/test_local_steps.py",),
    "attacks/gradients/matching.py": ("attacks/test_matching.py",),
    "attacks/gradients/observed.py": ("attacks/test_observed.py",),
    "spec.py": ("attacks/test_options.py", "test_registry.py"),
    "attacks/gradients/precision.py": ("attacks/test_engine.py",),
    "attacks/gradients/priors.py": ("attacks/test_priors.py",),
    "attacks/gradients/schedules.py": ("attacks/test_schedules.py",),
    "attacks/gradients/selftest.py": ("attacks/test_selftest.py",),
    "attacks/gradients/solvers.py": ("attacks/test_solvers.py",),
    "attacks/gradients/view.py": ("attacks/test_view.py",),
    "attacks/gradients/whitening.py": ("attacks/test_whitening.py",),
    "attacks/pairs/align.py": ("attacks/pairs/test_parts.py", "attacks/pairs/test_together.py"),
    "attacks/pairs/gifd.py": ("attacks/pairs/test_gifd.py",),
    "attacks/pairs/labels.py": ("attacks/pairs/test_parts.py",),
    "attacks/pairs/matching.py": ("attacks/pairs/test_parts.py",),
    "attacks/pairs/sentence.py": ("attacks/pairs/test_parts.py",),
    "attacks/pairs/text.py": ("attacks/pairs/test_parts.py", "attacks/pairs/test_together.py"),
    "attacks/pairs/together.py": ("attacks/pairs/test_together.py",),
    "attacks/pairs/view.py": ("attacks/pairs/test_parts.py",),
    "attacks/weights/calibration.py": ("attacks/weights/test_calibration.py",),
    "attacks/weights/canaries.py": ("studies/canaries/test_canaries.py",),
    "attacks/weights/cdmi.py": ("attacks/weights/test_cdmi.py", "attacks/weights/test_answers_only.py"),
    "attacks/weights/membership.py": ("attacks/weights/test_cdmi.py",),
    "attacks/weights/probing.py": ("attacks/weights/test_cdmi.py", "attacks/weights/test_answers_only.py"),
    "attacks/weights/sampling.py": ("attacks/weights/test_cdmi.py",),
    "attacks/weights/strong.py": ("attacks/weights/test_strong.py",),
    "defenses/defense.py": ("defenses/test_defenses.py",),
    "defenses/gradients.py": ("defenses/test_defenses.py",),
    "defenses/safe_template.py": ("defenses/test_defenses.py",),
    "studies/answers/membership.py": ("studies/answers/test_answers_membership.py",),
    "models/attention.py": ("models/test_attention.py",),
    "studies/canaries/audit.py": ("studies/canaries/test_canaries.py",),
    "studies/gradient/case.py": ("studies/gradient/test_case.py",),
    "metrics/calibration.py": ("metrics/test_calibration.py",),
    "metrics/extraction.py": ("metrics/test_extraction.py",),
    "metrics/image.py": ("metrics/test_image_distance.py",),
    "metrics/membership.py": ("metrics/test_membership.py",),
    "metrics/memorisation.py": ("metrics/test_memorisation.py",),
    "metrics/ocr.py": ("metrics/test_ocr_engines.py",),
    "metrics/score.py": ("metrics/test_score_page.py", "metrics/test_aggregate.py"),
    "metrics/text.py": ("metrics/test_text_match.py", "metrics/test_rouge.py"),
    "privacy/accounting.py": ("privacy/test_accounting.py", "privacy/test_groups.py"),
    "privacy/budget.py": ("privacy/test_budget.py",),
    "privacy/empirical.py": ("privacy/test_empirical.py", "privacy/test_lower_bound.py"),
    "privacy/one_run.py": ("privacy/test_lower_bound.py", "privacy/test_empirical.py"),
    "privacy/second.py": ("privacy/test_second.py",),
    "privacy/tradeoff.py": ("privacy/test_lower_bound.py",),
    "privacy/ledger.py": ("privacy/test_plan.py",),
    "privacy/mechanism.py": ("privacy/test_accounting.py",),
    "privacy/plan.py": ("privacy/test_plan.py",),
    "privacy/randomness.py": ("privacy/test_randomness.py",),
    "training/federated/summary.py": ("training/test_federation.py",),
    "training/federated/fedopt.py": ("training/test_fedopt.py",),
    "training/federated/local.py": ("training/test_local.py",),
    "training/federated/secure/fixed_point.py": ("training/federated/secure/test_fixed_point.py",),
    "training/federated/secure/plan.py": ("training/federated/secure/test_simulate.py",),
    "training/federated/secure/primitives.py": (
        "training/federated/secure/test_view.py", "training/federated/secure/test_faults.py",
        "training/federated/secure/test_key_files.py",
    ),
    "training/federated/secure/shamir.py": ("training/federated/secure/test_shamir.py",),
    "training/federated/secure/simulate.py": ("training/federated/secure/test_simulate.py",),
    "training/federated/wire.py": ("training/test_wire.py",),
    "training/private/clipping.py": ("training/test_private_clipping.py",),
    "training/private/pairs.py": ("training/test_private_pairs.py",),
    "training/private/records.py": ("training/test_private_records.py",),
    "training/private/rounds.py": ("training/test_private_rounds.py",),
    "training/private/units.py": ("training/test_private_rounds.py",),
}  # fmt: skip

#: A file with n possible mutants gives this times the square root of n: 3 of 10, 7 of 50, 15 of 240.
SHARE = 0.55


def sample(source: str) -> list[Mutant]:
    """The mutants that are tried of a source file: the first by identity, at most one a line while lines last.

    An identity is a hash, so this is a draw that no later change of other lines redraws.
    """
    every = sorted(mutants_of(SOURCE / source, ROOT), key=lambda mutant: mutant.identity)
    lines: set[int] = set()
    first, rest = [], []
    for mutant in every:
        (rest if mutant.line in lines else first).append(mutant)
        lines.add(mutant.line)
    return sorted((first + rest)[: math.ceil(SHARE * math.sqrt(len(every)))], key=lambda mutant: mutant.position)
