"""``docleak deploy``: the same federation over a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.output import emit

app = typer.Typer(
    help="Run a federation over a network, on Flower's SuperLink and SuperNodes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


@app.command()
def init(
    out: Annotated[Path, typer.Argument(help="New folder for the server's and the silos' files.")],
    silos: Annotated[str, typer.Option(help="How many silos, or their names, separated by commas.")],
    host: Annotated[str, typer.Option(help="Name or address under which silos reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the gate, the only one that silos reach.")] = 9443,
    superlink_port: Annotated[int, typer.Option(help="Port of Flower's SuperLink on loopback.")] = 9442,
    like: Annotated[
        Path | None, typer.Option(help="A run of docleak train federated with the settings to use.")
    ] = None,
    evaluate_every: Annotated[int, typer.Option(help="Evaluate at the silos after so many rounds; 0 never.")] = 0,
    timeout: Annotated[int, typer.Option(help="Seconds a silo has to answer.")] = 3600,
    days: Annotated[int, typer.Option(help="Days the certificates are valid.")] = 365,
    json_output: Json = False,
) -> None:
    """Write certificates, keys, configurations and start commands for a server and its silos."""
    from docleak.training.federated.deploy.folders import Deployment, silo_names, write_deployment
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.record import load_run

    deployment = Deployment(silo_names(silos), host, port, superlink_port, days, evaluate_every, timeout)
    federation = load_run(like).federation if like else Federation()
    folders = write_deployment(deployment, federation, out)
    listed = "\n".join(f"  {folder}" for folder in folders)
    emit({"folders": [str(folder) for folder in folders]}, f"{listed}\nWhat to do: {out}/README.md",
         json_output=json_output)  # fmt: skip


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A server's or silo's folder that docleak deploy init wrote.")],
    silo: Annotated[str, typer.Option(help="The silo's pages, which are opened. Empty: not looked at.")] = "",
    server: Annotated[str, typer.Option(help="HOST:PORT of the gate, to which a connection is made.")] = "",
    json_output: Json = False,
) -> None:
    """Say what would keep this party from working: files, key permissions, certificates, pages, connection."""
    from docleak.training.federated.deploy.check import check_folder

    notes = check_folder(folder, silo=silo, server=server)
    emit({"folder": str(folder), "notes": notes}, "\n".join(["ok", *notes]), json_output=json_output)


@app.command()
def silo(
    folder: Annotated[Path, typer.Argument(help="A silo's own folder: of docleak deploy init, or of its pages.")],
    epsilon: Annotated[float | None, typer.Option(help="The most that all in its ledger may cost.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta that belongs to it.")] = None,
    noise_std: Annotated[
        float | None, typer.Option(help="Least standard deviation of its noise before M: z C / sqrt(shares).")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="The most silos that may share the noise.")] = None,
    unit: Annotated[str | None, typer.Option(help="Whose presence is hidden: provider, document, client.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="The largest C.")] = None,
    denominator: Annotated[int | None, typer.Option(help="The smallest M.")] = None,
    evaluation: Annotated[
        bool | None, typer.Option(help="Answer questions on kept documents; each time counts in its ledger.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Show what a silo has spent, and what it takes part in whatever the server sends; options change the latter."""
    from docleak.training.federated.silo_ledger import change_limits

    asked = {
        "epsilon": epsilon, "delta": delta, "noise_std": noise_std, "clients": clients, "unit": unit,
        "clip_norm": clip_norm, "denominator": denominator, "evaluation": evaluation,
    }  # fmt: skip
    ledger = change_limits(folder, {name: value for name, value in asked.items() if value is not None})
    emit(ledger.facts(), ledger.sentence(), json_output=json_output)


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(help="The silo's folder that docleak deploy init wrote.")],
    name: Annotated[str, typer.Option(help="The silo's name.")],
    pages: Annotated[Path, typer.Option(help="The folder of its pages.")],
    server: Annotated[str, typer.Option(help="HOST:PORT of the gate.")],
    port: Annotated[int, typer.Option(help="Port of the node itself, on loopback.")] = 9094,
    model: Annotated[str, typer.Option(help="The model, where the server's name of it means nothing here.")] = "",
    secure_threshold: Annotated[int, typer.Option(help="Silos that a secure sum must be over, at least.")] = 2,
    guard: Annotated[
        bool, typer.Option("--guard", help="Inspect each model before training it; refuse a manipulated one.")
    ] = False,
    any_code: Annotated[
        bool, typer.Option("--any-code", help="Execute whatever code the server sends, not docleak's own app only.")
    ] = False,
) -> None:
    """Run a silo's node until it is stopped, and again whenever it loses its server; its processes end with it."""
    from docleak.training.federated.deploy.start import run_node

    run_node(
        folder, pages, name=name, server=server, port=port, model=model, least_threshold=secure_threshold,
        any_code=any_code, guard=guard,
    )  # fmt: skip


@app.command()
def superlink(
    folder: Annotated[Path, typer.Argument(help="The server's folder that docleak deploy init wrote.")],
    port: Annotated[int, typer.Option(help="Port of the SuperLink, on loopback.")] = 9442,
) -> None:
    """Run Flower's SuperLink with the silos' keys until it is stopped, and again whenever it ends."""
    from docleak.training.federated.deploy.start import run_superlink

    run_superlink(folder, port=port)


@app.command()
def gate(
    folder: Annotated[Path, typer.Argument(help="The server's folder, with its certificate.")],
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink on loopback.")],
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 9443,
    json_output: Json = False,
) -> None:
    """Forward what silos may ask of the SuperLink, and refuse the rest; runs until it is stopped."""
    from docleak.training.federated.deploy.gate import serve
    from docleak.training.federated.deploy.start import check_apart

    check_apart(folder)
    emit({"listening": f"{listen}:{port}"}, f"gate: {listen}:{port} to {superlink}", json_output=json_output)
    serve(superlink, folder, host=listen, port=port)
