"""``docleak deploy``: the same federation over a network."""

from __future__ import annotations

from pathlib import Path

from docleak.cli.command import Line
from docleak.cli.output import emit
from docleak.documents import ranges
from docleak.documents.ranges import Range
from docleak.options import option, required


def init(
    out: Path = required("New folder for the server's and the silos' files.", argument=True),
    silos: str = required("How many silos, or their names, separated by commas."),
    host: str = option("127.0.0.1", "Name or address under which silos reach the server."),
    port: int = option(9443, "Port of the gate, the only one that silos reach.", range=ranges.PORT),
    superlink_port: int = option(9442, "Port of Flower's SuperLink on loopback.", range=ranges.PORT),
    like: Path | None = option(None, "A run of docleak train federated with the settings to use."),
    evaluate_every: int = option(0, "Evaluate at the silos after so many rounds; 0 never.", range=ranges.COUNT),
    timeout: int = option(3600, "Seconds a silo has to answer.", range=ranges.TIMEOUT),
    days: int = option(365, "Days the certificates are valid.", range=Range(1, 36_500)),
) -> None:
    """Write certificates, keys, configurations and start commands for a server and its silos."""
    from docleak.training.federated.deploy.folders import Deployment, silo_names, write_deployment
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.record import load_run

    deployment = Deployment(silo_names(silos), host, port, superlink_port, days, evaluate_every, timeout)
    federation = load_run(like).federation if like else Federation()
    folders = write_deployment(deployment, federation, out)
    listed = "\n".join(f"  {folder}" for folder in folders)
    emit({"folders": [str(folder) for folder in folders]}, f"{listed}\nWhat to do: {out}/README.md")  # fmt: skip


def check(
    folder: Path = required("A server's or silo's folder that docleak deploy init wrote.", argument=True),
    silo: str = option("", "The silo's pages, which are opened. Empty: not looked at."),
    server: str = option("", "HOST:PORT of the gate, to which a connection is made."),
) -> None:
    """Say what would keep this party from working: files, key permissions, certificates, pages, connection."""
    from docleak.training.federated.deploy.check import check_folder

    notes = check_folder(folder, silo=silo, server=server)
    emit({"folder": str(folder), "notes": notes}, "\n".join(["ok", *notes]))


def silo(
    folder: Path = required("A silo's own folder: of docleak deploy init, or of its pages.", argument=True),
    epsilon: float | None = option(None, "The most that all in its ledger may cost.", range=ranges.EPSILON),
    delta: float | None = option(None, "Delta that belongs to it.", range=ranges.DELTA),
    noise_std: float | None = option(
        None, "Least standard deviation of its noise before M: z C / sqrt(shares).", range=ranges.NOISE
    ),
    clients: int | None = option(None, "The most silos that may share the noise.", range=ranges.CLIENTS),
    unit: str | None = option(None, "Whose presence is hidden: provider, document, client."),
    clip_norm: float | None = option(None, "The largest C.", range=ranges.CLIP_NORM),
    denominator: int | None = option(None, "The smallest M.", range=ranges.DENOMINATOR),
    evaluation: bool | None = option(
        None, "Answer questions on kept documents; each time counts in its ledger.", both=True
    ),
) -> None:
    """Show what a silo has spent, and what it takes part in whatever the server sends; options change the latter."""
    from docleak.training.federated.silo_ledger import change_limits

    asked = {
        "epsilon": epsilon, "delta": delta, "noise_std": noise_std, "clients": clients, "unit": unit,
        "clip_norm": clip_norm, "denominator": denominator, "evaluation": evaluation,
    }  # fmt: skip
    ledger = change_limits(folder, {name: value for name, value in asked.items() if value is not None})
    emit(ledger.facts(), ledger.sentence())


def node(
    folder: Path = required("The silo's folder that docleak deploy init wrote.", argument=True),
    name: str = required("The silo's name."),
    pages: Path = required("The folder of its pages."),
    server: str = required("HOST:PORT of the gate."),
    port: int = option(9094, "Port of the node itself, on loopback.", range=ranges.PORT),
    model: str = option("", "The model, where the server's name of it means nothing here."),
    secure_threshold: int = option(2, "Silos that a secure sum must be over, at least.", range=ranges.SECURE_THRESHOLD),
    guard: bool = option(False, "Inspect each model before training it; refuse a manipulated one."),
    any_code: bool = option(False, "Execute whatever code the server sends, not docleak's own app only."),
) -> None:
    """Run a silo's node until it is stopped, and again whenever it loses its server; its processes end with it."""
    from docleak.training.federated.deploy.start import run_node

    run_node(
        folder, pages, name=name, server=server, port=port, model=model, least_threshold=secure_threshold,
        any_code=any_code, guard=guard,
    )  # fmt: skip


def superlink(
    folder: Path = required("The server's folder that docleak deploy init wrote.", argument=True),
    port: int = option(9442, "Port of the SuperLink, on loopback.", range=ranges.PORT),
) -> None:
    """Run Flower's SuperLink with the silos' keys until it is stopped, and again whenever it ends."""
    from docleak.training.federated.deploy.start import run_superlink

    run_superlink(folder, port=port)


def gate(
    folder: Path = required("The server's folder, with its certificate.", argument=True),
    superlink: str = required("Address of the SuperLink on loopback."),
    listen: str = option("127.0.0.1", "Address to listen on."),
    port: int = option(9443, "Port to listen on.", range=ranges.PORT),
) -> None:
    """Forward what silos may ask of the SuperLink, and refuse the rest; runs until it is stopped."""
    from docleak.training.federated.deploy.gate import serve
    from docleak.training.federated.deploy.start import check_apart

    check_apart(folder)
    emit({"listening": f"{listen}:{port}"}, f"gate: {listen}:{port} to {superlink}")
    serve(superlink, folder, host=listen, port=port)


ABOUT = "Run a federation over a network, on Flower's SuperLink and SuperNodes."
COMMANDS = (init, check, silo, Line(node, "deploy", endless=True), Line(superlink, "deploy", endless=True), gate)
