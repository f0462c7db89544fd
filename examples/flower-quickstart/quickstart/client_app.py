"""The ClientApp. With UPDATES_AT_CLIENT set, docleak's mod records what leaves each client."""

import os

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import docleak
from quickstart.task import load_data, load_model
from quickstart.task import train as train_fn

seen = os.environ.get("UPDATES_AT_CLIENT")
app = ClientApp(mods=[docleak.tap_client(seen)] if seen else [])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = load_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id = int(context.node_config["partition-id"])
    trainloader = load_data(str(context.run_config["pages"]), partition_id, int(context.run_config["batch-size"]))
    loss = train_fn(model, trainloader, int(context.run_config["local-epochs"]), float(msg.content["config"]["lr"]))
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset), "partition-id": partition_id}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
