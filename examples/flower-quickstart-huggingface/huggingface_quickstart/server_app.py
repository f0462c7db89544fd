"""The ServerApp. The line with docleak.tap is all that an audit needs."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import docleak
from huggingface_quickstart.task import load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    strategy = FedAvg(fraction_train=float(context.run_config["fraction-train"]), fraction_evaluate=0.0)
    strategy = docleak.tap(strategy, str(context.run_config["updates"]))
    arrays = ArrayRecord(load_model().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
