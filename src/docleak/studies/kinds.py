"""Which studies there are, without importing any: where each is, what it measures, and where its runs go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A study: its class ("module:Class"), its configuration's ("": it has no options), what it does in a line, and
    the default --out of ``docleak audit NAME`` ("": it is no audit of its own)."""

    place: str
    config: str
    about: str
    out: str = ""


#: Name -> kind, as run.json says it. A new study is a file, and a line in this table.
STUDIES: dict[str, Kind] = {
    "gradient": Kind(
        "docleak.studies.gradient.study:GradientStudy", "docleak.studies.gradient.config:GradientConfig",
        "What a server reads out of one client's gradient: private fields of the page, question and answer.",
        "docleak-gradient",
    ),
    "updates": Kind(
        "docleak.studies.updates.study:UpdatesStudy", "docleak.studies.updates.config:UpdatesConfig",
        "What the server of a federated training received, attacked after the clients' local steps.", "docleak-updates",
    ),
    "weights": Kind(
        "docleak.studies.weights.study:WeightsStudy", "docleak.studies.weights.config:WeightsConfig",
        "Scrubbed fields read back out of a trained extraction model's weights, beside what public data alone guess.",
        "docleak-weights",
    ),
    "answers": Kind(
        "docleak.studies.answers.study:AnswersStudy", "docleak.studies.answers.config:AnswersConfig",
        "What released models remember of providers, and who can be told to have taken part.", "docleak-answers",
    ),
    "pairs": Kind(
        "docleak.studies.pairs.study:PairStudy", "docleak.studies.pairs.config:PairConfig",
        "Picture and text of one client, out of its two gradients.", "docleak-pairs",
    ),
    "canaries": Kind(
        "docleak.studies.canaries.study:CanaryStudy", "docleak.studies.canaries.config:CanaryConfig",
        "What one private training provably leaks: a lower bound on epsilon beside what the accountant claims.",
        "docleak-canaries",
    ),
    "presence": Kind(
        "docleak.studies.presence.study:PresenceStudy", "docleak.studies.presence.config:PresenceConfig",
        "Whether a page was in an update that a server received, by projection and by alignment.", "docleak-presence",
    ),
    "servers": Kind(
        "docleak.studies.servers.study:ServersStudy", "docleak.studies.servers.config:ServersConfig",
        "What a server reads that manipulates the model it sends, and whether the guard lets it.", "docleak-servers",
    ),
    "defences": Kind(
        "docleak.studies.gradient.defences:DefenceStudy", "docleak.studies.gradient.config:DefenceConfig",
        "What each defence leaves of the leak, and what it costs: the same attack under each, the model trained "
        "under each.",
    ),
    "adapters": Kind(
        "docleak.studies.adapters.study:AdapterStudy", "", "What vision-language models and their adapters give away.",
    ),
    "attention": Kind("docleak.studies.attention.study:AttentionStudy", "", "Where models look while they answer."),
    "training": Kind("docleak.studies.training.rounds:RoundsStudy", "", "Federated and central trainings."),
    "trainings": Kind(
        "docleak.studies.training.study:TrainingStudy", "", "What models answer after a training, in rows of tables.",
    ),
}  # fmt: skip
#: Those with a command of their own.
AUDITS = {name: kind for name, kind in STUDIES.items() if kind.out}
