"""``docleak train --phases ... --phase NAME``: one of several trainings that share a budget."""

from __future__ import annotations

from docleak.cli.private_options import given
from docleak.errors import PrivacyError


def phase_settings(
    phases: str,
    name: str,
    epsilon: float | None,
    noise: float | None,
    rounds: int,
    unit_rate: str,
    *,
    delta: float,
    unit: str,
    client_rate: float,
) -> tuple[float | None, float | None, int, str]:
    """(epsilon, noise, rounds, unit rate) of the phase ``name``, its noise found for all phases together.

    Without ``phases`` they stay what they are. PrivacyError for options that contradict the plan.
    """
    from docleak.privacy.mechanism import Mechanism, Unit, choice, probability
    from docleak.privacy.phases import noise_for_phases, phase_of, phases_of

    if not phases and not name:
        return epsilon, noise, rounds, unit_rate
    if not phases or not name:
        raise PrivacyError(
            "--phases and --phase belong together: all trainings of the plan, and which of them this is."
        )
    if epsilon is None or noise is not None:
        raise PrivacyError("--phases plans the noise for one --epsilon of all phases; give that, and no --noise.")
    planned = phases_of(phases)
    chosen = phase_of(planned, name)
    other = given("rounds") if rounds != chosen.rounds else []
    other += given("unit_rate") if probability(unit_rate, what="unit rate") != chosen.unit_rate else []
    if other:
        raise PrivacyError(
            f"phase {name!r} has {chosen.rounds} rounds at unit rate {chosen.unit_rate:g} by --phases, and "
            f"{' and '.join(other)} say otherwise. Leave them out."
        )
    like = Mechanism(1.0, 1, client_rate=client_rate, unit=choice(Unit, unit, what="unit"))
    found = noise_for_phases(planned, like, epsilon, delta)
    return None, found, chosen.rounds, repr(chosen.unit_rate)
