"""The ServerApp. The line with docleak.tap is all that an audit needs."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import docleak
from pytorch_quickstart.task import load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    run_config = context.run_config
    strategy = docleak.tap(FedAvg(fraction_evaluate=float(run_config["fraction-evaluate"])), str(run_config["updates"]))
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(load_model().state_dict()),
        train_config=ConfigRecord({"lr": float(run_config["learning-rate"])}),
        num_rounds=int(run_config["num-server-rounds"]),
    )  # fmt: skip
