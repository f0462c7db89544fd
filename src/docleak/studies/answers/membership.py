"""Provider membership inference held against the truth: attacks over seeds and subsets, and a measured epsilon.

Tito et al. (2024), section 7.2 and Table 4: for each s, the providers with more than s questions; r of them, balanced,
are known to the adversary of APK, and every attack is evaluated on the others, so that all see the same providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from docleak.attacks.answers.attack import AnswersAttack, MembershipAttack, ProvidersView, ask_who
from docleak.attacks.answers.features import FeatureTable, Reply
from docleak.attacks.answers.membership import Guess
from docleak.attacks.asking import OwnAttackError
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.metrics.membership import draw_known, membership_rates, over_seeds
from docleak.privacy.empirical import LowerBound, from_one_run, from_scores, right_guesses
from docleak.report.measure import share_of

#: Share of the providers that a one-run audit calls members, and as many non-members; the rest are not guessed.
CALLED = 0.25
RESAMPLES = 2000
CONFIDENCE = 0.95
#: What a measured epsilon says of replies whose losses tell nobody from another.
NO_GUESS = "there is nothing to guess by"


@dataclass(frozen=True)
class Subset:
    """An attack on the providers with more than ``minimum`` questions, over draws of who is known.

    ``accuracy`` is the mean over ``seeds``, ``std`` their deviation; its interval is over providers, each of which
    counts with the share of the seeds in which it was guessed right (``right``). It says why nothing could be measured.
    ``rates`` are means over the seeds, None where the providers do not resolve them; ``chance`` is the share of the
    guesses that saying the same of all would be right about.
    """

    minimum: int
    providers: int
    members: int
    seeds: int
    accuracy: Estimate
    std: float | None = None
    rates: Mapping[str, float | None] = field(default_factory=dict)
    right: Mapping[str, float] = field(default_factory=dict)
    chance: float | None = None


def measure(
    table: FeatureTable, truth: Mapping[str, bool], attack: AnswersAttack, minimum: int, *, seeds: Sequence[int]
) -> Subset:
    """Run the attack once per seed. Where the subset has too few providers for ``known``, the accuracy says so."""
    subset = table.more_than(minimum)
    inside = {name: truth[name] for name in subset.providers}
    counts = len(inside), sum(inside.values())
    right: dict[str, list[float]] = {}
    rates: list[Mapping[str, float | None]] = []
    commoner: list[float] = []
    try:
        for seed in seeds:
            drawn = draw_known(inside, attack.known, rng=np.random.default_rng(seed))
            guess = ask_who(attack, ProvidersView(subset, drawn.evaluated), drawn.known, seed=seed)
            members = np.array([truth[name] for name in guess.providers])
            commoner.append(float(max(members.mean(), 1 - members.mean())))
            for name, correct in zip(guess.providers, (guess.members == members).tolist(), strict=True):
                right.setdefault(name, []).append(float(correct))
            estimates = membership_rates(
                guess.scores, guess.members, members, rng=np.random.default_rng(seed), resamples=1
            )
            rates.append({name: rate.value for name, rate in estimates.items()})
    except OwnAttackError:
        raise
    except AttackError as error:
        return Subset(minimum, *counts, 0, Estimate(None, why=str(error)))
    accuracy = over_seeds([float(rate["accuracy"] or 0.0) for rate in rates])
    sums = np.array([sum(values) for values in right.values()])
    asked = np.array([len(values) for values in right.values()])
    low, high = ratio_interval(sums, asked, np.random.default_rng(0), 0.95, RESAMPLES, share=True)
    means = {
        name: None if any(rate[name] is None for rate in rates) else float(np.mean([rate[name] or 0 for rate in rates]))
        for name in rates[0]
    }
    measured = Estimate(accuracy.mean, low, high, int(asked.sum()), len(right), of="guesses about providers")
    shares = {name: float(np.mean(values)) for name, values in right.items()}
    return Subset(minimum, *counts, len(rates), measured, accuracy.std, means, shares,
                  float(np.mean(commoner)))  # fmt: skip


def beyond(target: Subset, public: Subset, rng: np.random.Generator) -> Estimate:
    """How much oftener an attack is right about a provider by the target's answers than by the public model's: the mean
    over providers, in -1..1, and its interval over them; no value where either could not be measured."""
    if why := target.accuracy.why or public.accuracy.why:
        return Estimate(None, why=why)
    both = {name: (right - public.right[name], 1) for name, right in target.right.items()}
    return share_of(both, rng, of="providers", share=False).within(-1.0, 1.0)


def features_of(attack: AnswersAttack) -> tuple[str, ...]:
    """The feature groups that it looks at: with those of the memorisation test, if that votes, too."""
    return (*attack.groups, *(["G4"] if attack.votes and "G4" not in attack.groups else []))


def without_public(attack: AnswersAttack) -> AnswersAttack:
    """The attack of somebody who has no public model to compare with."""
    kept = tuple(group for group in attack.groups if group != "G3")
    if isinstance(attack, MembershipAttack) and not kept:
        raise AttackError(f"{attack.name} looks at G3 alone, what a public model says beside; give one (--public).")
    return replace(attack, groups=kept) if isinstance(attack, MembershipAttack) else attack


def guessed(
    table: FeatureTable, members: Mapping[str, bool], attacks: Sequence[AnswersAttack], seed: int
) -> dict[str, Guess]:
    """What each attack says with the first seed, of all providers but those that it knows; of attacks for which there
    are too few of them, nothing."""
    inside = {name: members[name] for name in table.providers}
    said = {}
    for attack in attacks:
        try:
            drawn = draw_known(inside, attack.known, rng=np.random.default_rng(seed))
            said[attack.name] = ask_who(attack, ProvidersView(table, drawn.evaluated), drawn.known, seed=seed)
        except OwnAttackError:
            raise
        except AttackError:
            continue
    return said


def measured_epsilon(
    target: Sequence[Reply],
    public: Sequence[Reply],
    truth: Mapping[str, bool],
    *,
    coins: float,
    delta: float,
    seed: int,
) -> LowerBound:
    """The epsilon per provider that the losses show to be exceeded, with 95 % confidence.

    A provider's score is how much lower its mean loss is than the public model's. Where each provider was a member by
    a fair coin of its own (``coins`` 1/2) every provider is a canary of a one-run audit, which is a proof: the CALLED
    highest scores are called members and as many lowest others. Else it is an estimate, from thresholds at ranks of
    the scores. Equal scores of all show nothing. Raises AttackError for replies
    without loss.
    """
    names = sorted({reply.provider for reply in target})
    scores = np.array([_loss(public, name) - _loss(target, name) for name in names])
    members = np.array([truth[name] for name in names])
    if np.ptp(scores) == 0:
        evidence = f"the scores of all {len(names)} providers are equal, so that {NO_GUESS}"
        return LowerBound(0.0, delta, CONFIDENCE, evidence, "0 holds of everything", method="no guess")
    rng = np.random.default_rng(seed)
    if coins != 0.5:
        return from_scores(scores, members, delta, rng=rng)
    called = round(CALLED * len(names))
    right = right_guesses(scores, members, called, called, rng=rng)
    return from_one_run(len(names), 2 * called, right, delta)


def _loss(replies: Sequence[Reply], provider: str) -> float:
    losses = [reply.loss for reply in replies if reply.provider == provider]
    known = [loss for loss in losses if loss is not None]
    if not known or len(known) < len(losses):
        raise AttackError(f"{len(losses) - len(known)} replies on {provider!r} have no loss; ask with scores.")
    return float(np.mean(known))
