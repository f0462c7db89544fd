"""``docleak train --phases ... --phase NAME``: one of several trainings that share a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from docleak.errors import PrivacyError
from docleak.training.settings import TrainingSettings


def of_phase(settings: TrainingSettings, phases: str, name: str, said: Mapping[str, str]) -> TrainingSettings:
    """The settings of the phase ``name``: its rounds, its unit rate, and the noise found for all phases together.

    Without ``phases`` they stay what they are. PrivacyError for settings that contradict the plan; ``said`` are those
    that were given, by name as they were written.
    """
    from docleak.privacy.mechanism import Mechanism, Unit, choice, probability
    from docleak.privacy.phases import noise_for_phases, phase_of, phases_of

    if empty := [said[one] for one, text in (("phases", phases), ("phase", name)) if one in said and not text.strip()]:
        raise PrivacyError(f"{' and '.join(empty)} given without a text; name trainings, or leave it out.")
    if not phases and not name:
        return settings
    if not phases or not name:
        raise PrivacyError(
            "--phases and --phase belong together: all trainings of the plan, and which of them this is."
        )
    if settings.epsilon is None or settings.noise is not None:
        raise PrivacyError("--phases plans the noise for one --epsilon of all phases; give that, and no --noise.")
    planned = phases_of(phases)
    chosen = phase_of(planned, name)
    differs = {
        "rounds": settings.rounds != chosen.rounds,
        "unit_rate": probability(settings.unit_rate, what="unit rate") != chosen.unit_rate,
    }
    if other := [said[setting] for setting, differ in differs.items() if differ and setting in said]:
        raise PrivacyError(
            f"phase {name!r} has {chosen.rounds} rounds at unit rate {chosen.unit_rate:g} by --phases, and "
            f"{' and '.join(other)} {'say' if len(other) > 1 else 'says'} otherwise. Leave that out."
        )
    unit = choice(Unit, settings.unit, what="unit")
    noise = noise_for_phases(
        planned, Mechanism(1.0, 1, client_rate=settings.participation, unit=unit), settings.epsilon, settings.delta
    )
    return replace(settings, epsilon=None, noise=noise, rounds=chosen.rounds, unit_rate=repr(chosen.unit_rate))
