"""The ClientApp. With UPDATES_AT_CLIENT set, docleak's mod records what leaves each client."""

import os

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import docleak
from huggingface_quickstart.task import load_data, load_model
from huggingface_quickstart.task import train as train_fn

seen = os.environ.get("UPDATES_AT_CLIENT")
app = ClientApp(mods=[docleak.tap_client(seen)] if seen else [])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    partition_id = int(context.node_config["partition-id"])
    trainloader = load_data(str(context.run_config["pages"]), partition_id)
    net = load_model()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    train_loss = train_fn(net, trainloader, int(context.run_config["local-steps"]))
    # The partition's number is not in Flower's quickstart: it tells the audit whose pages these are.
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset), "partition-id": partition_id}
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
