"""The ClientApp. With UPDATES_AT_CLIENT set, docleak's mod records what leaves each client."""

import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

import docleak
from pytorch_quickstart.task import load_data, load_model
from pytorch_quickstart.task import test as test_fn
from pytorch_quickstart.task import train as train_fn

seen = os.environ.get("UPDATES_AT_CLIENT")
app = ClientApp(mods=[docleak.tap_client(seen)] if seen else [])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model, trainloader, metrics = _begin(msg, context)
    epochs, rate = int(context.run_config["local-epochs"]), float(msg.content["config"]["lr"])
    metrics["train_loss"] = train_fn(model, trainloader, epochs, rate)
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model, loader, metrics = _begin(msg, context)
    metrics["eval_loss"] = test_fn(model, loader)
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def _begin(msg: Message, context: Context) -> tuple[torch.nn.Module, DataLoader, dict[str, int | float]]:
    """The received model, this partition's pages, and what each reply says.

    The partition's number is not in Flower's quickstart: it tells the audit whose pages these are.
    """
    model = load_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id = int(context.node_config["partition-id"])
    loader = load_data(str(context.run_config["pages"]), partition_id, int(context.run_config["batch-size"]))
    return model, loader, {"num-examples": len(loader.dataset), "partition-id": partition_id}
