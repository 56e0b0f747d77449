"""An ordinary opacus training, which does not use fedtrees: logistic regression by DP-SGD."""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset


def train(X, y, epsilon, delta, seed=0, epochs=10, batch=64, clip=1.0, lr=0.01):
    """Return weights, bias, and the epsilon that opacus reports."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(X.shape[1], 1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    rows = TensorDataset(torch.tensor(X), torch.tensor(y, dtype=torch.float32))
    engine = PrivacyEngine(accountant="prv")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        data_loader=DataLoader(rows, batch_size=batch),
        target_epsilon=epsilon,
        target_delta=delta,
        epochs=epochs,
        max_grad_norm=clip,
    )
    loss = torch.nn.BCEWithLogitsLoss()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss(model(inputs)[:, 0], labels).backward()
            optimizer.step()
    weight, bias = (p.detach().numpy() for p in model.parameters())
    return weight[0], float(bias[0]), engine.get_epsilon(delta)
