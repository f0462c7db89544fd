"""Data, training and test of the quickstart: shuffled batches of 32; SGD at 0.1 with momentum 0.9; dropout on."""

from pathlib import Path

import torch
from somebodys_app import Questions, load_model
from torch.utils.data import DataLoader

__all__ = ["load_data", "load_model", "test", "train"]


def load_data(folder: str, partition_id: int, batch_size: int) -> DataLoader:
    """The pages of one partition; two are too few to keep some for a test."""
    pages = Questions(Path(folder) / str(partition_id))
    return DataLoader(pages, batch_size=batch_size, shuffle=True, collate_fn=pages.collate)


def train(net: torch.nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model on the training set."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = net(**batch).loss
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test(net: torch.nn.Module, testloader: DataLoader) -> float:
    """The mean loss."""
    net.eval()
    return sum(net(**batch).loss.item() for batch in testloader) / len(testloader)
