"""Graph networks of torch_geometric on small random graphs, trained as the library's examples train them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coverage_cases.case import Case, Training

NODES, FEATURES, CLASSES, EDGES = 40, 16, 4, 120


def _graph() -> Any:
    """Features, edges, classes, and which nodes are trained on (Planetoid's split)."""
    import torch
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, FEATURES, generator=generator),
        edge_index=torch.randint(0, NODES, (2, EDGES), generator=generator),
        edge_attr=torch.randn(EDGES, 8, generator=generator),
        edge_type=torch.randint(0, 3, (EDGES,), generator=generator),
        y=torch.randint(0, CLASSES, (NODES,), generator=generator),
        train_mask=torch.arange(NODES) < 20,
    )


def node_classifier(layer: Callable[[int, int], Any]) -> Training:
    """Two layers with dropout between them; the loss reads the nodes of the training mask."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layer(FEATURES, 32), layer(32, CLASSES)

        def forward(self, x: Any, edge_index: Any) -> Any:
            x = F.dropout(x, p=0.5, training=self.training)
            x = F.relu(self.first(x, edge_index))
            x = F.dropout(x, p=0.5, training=self.training)
            return self.second(x, edge_index)

    model, data = Net(), _graph()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def step() -> float:
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    return Training(model, step=step)


def by_call(layer: Callable[[int, int], Any]) -> Training:
    """One layer and a classifier, captured from its inputs and a loss over all nodes."""
    import torch

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = layer(FEATURES, 32), torch.nn.Linear(32, CLASSES)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.out(torch.relu(self.conv(x, edge_index)))

    model, data = Net(), _graph()
    loss = torch.nn.functional.cross_entropy
    return Training(model, (data.x, data.edge_index), data.y, loss, torch.optim.Adam(model.parameters()))


def with_edges(build_layer: Callable[[], Any], argument: str) -> Training:
    """A layer that takes features or types of the edges."""
    import torch

    torch.manual_seed(0)
    data = _graph()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = build_layer(), torch.nn.LazyLinear(CLASSES)

        def forward(self, x: Any, edge_index: Any, edges: Any) -> Any:
            return self.out(torch.relu(self.conv(x, edge_index, edges)))

    model = Net()
    inputs = (data.x, data.edge_index, data[argument])
    model(*inputs)
    return Training(model, inputs, data.y, torch.nn.functional.cross_entropy, torch.optim.Adam(model.parameters()))


def graph_classifier(pooling: str) -> Training:
    """GIN over a batch of graphs, pooled to one vector a graph."""
    import torch
    import torch.nn.functional as F
    from torch_geometric import nn
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.GINConv(nn.MLP([FEATURES, 32, 32]))
            self.conv2 = nn.GINConv(nn.MLP([32, 32, 32]))
            self.pool = nn.TopKPooling(32, ratio=0.5) if pooling == "top k" else None
            self.out = nn.MLP([32, 32, CLASSES], norm=None, dropout=0.5)

        def forward(self, x: Any, edge_index: Any, batch: Any) -> Any:
            x = self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu()
            if self.pool is not None:
                x, edge_index, _, batch, *_ = self.pool(x, edge_index, None, batch)
            pool = {"mean": nn.global_mean_pool, "add": nn.global_add_pool, "top k": nn.global_max_pool}[pooling]
            return self.out(pool(x, batch))

    graphs = [
        Data(x=torch.randn(n, FEATURES), edge_index=torch.randint(0, n, (2, 3 * n)), y=torch.tensor([n % CLASSES]))
        for n in (8, 11, 13, 6)
    ]
    data = Batch.from_data_list(graphs)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> float:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        return float(loss) * data.num_graphs

    return Training(model, step=step)


def link_prediction() -> Training:
    """A graph autoencoder: dot products of node embeddings, with edges that are drawn as negatives."""
    import torch
    from torch_geometric import nn

    torch.manual_seed(0)
    data = _graph()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.GCNConv(FEATURES, 32), nn.GCNConv(32, 16)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    model = nn.GAE(Encoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> float:
        model.train()
        optimizer.zero_grad()
        loss = model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index)
        loss.backward()
        optimizer.step()
        return float(loss)

    return Training(model, step=step)


def point_cloud() -> Training:
    """Edge convolution over given neighbours of points."""
    import torch
    from torch_geometric import nn

    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.EdgeConv(nn.MLP([6, 32, 32]), aggr="max")
            self.out = nn.MLP([32, CLASSES], norm=None)

        def forward(self, position: Any, edge_index: Any, batch: Any) -> Any:
            return self.out(nn.global_max_pool(self.conv(position, edge_index), batch, size=2))

    model = Net()
    inputs = (torch.randn(NODES, 3), torch.randint(0, NODES, (2, EDGES)), torch.arange(NODES) // (NODES // 2))
    return Training(model, inputs, torch.tensor([0, 1]), torch.nn.functional.cross_entropy, torch.optim.Adam(model.parameters()))


def library_model(name: str) -> Training:
    """A model of `torch_geometric.nn` as a whole."""
    import torch
    from torch_geometric import nn

    torch.manual_seed(0)
    data = _graph()
    model = getattr(nn, name)(FEATURES, 32, 2, CLASSES, dropout=0.1)
    return Training(
        model, (data.x, data.edge_index), data.y, torch.nn.functional.cross_entropy, torch.optim.Adam(model.parameters())
    )  # fmt: skip


def _layer(name: str, **keywords: Any) -> Callable[[int, int], Any]:
    def build(inputs: int, outputs: int) -> Any:
        from torch_geometric import nn

        return getattr(nn, name)(inputs, outputs, **keywords)

    return build


def _edge_layer(name: str, **keywords: Any) -> Callable[[], Any]:
    def build() -> Any:
        from torch_geometric import nn

        return getattr(nn, name)(FEATURES, 32, **keywords)

    return build


def _gin_layer(inputs: int, outputs: int) -> Any:
    from torch_geometric import nn

    return nn.GINConv(nn.MLP([inputs, outputs, outputs]))


def cases() -> list[Case]:
    table: dict[str, Callable[[], Training]] = {
        "gcn, training mask": partial(node_classifier, _layer("GCNConv")),
        "gat, training mask": partial(node_classifier, _layer("GATConv", heads=2, concat=False)),
        "gatv2, training mask": partial(node_classifier, _layer("GATv2Conv", heads=2, concat=False)),
        "sage, training mask": partial(node_classifier, _layer("SAGEConv")),
        "gin, training mask": partial(node_classifier, _gin_layer),
        "transformer convolution": partial(by_call, _layer("TransformerConv", heads=2, concat=False)),
        "chebyshev": partial(by_call, _layer("ChebConv", K=3)),
        "graph convolution with self loops": partial(by_call, _layer("GCNConv")),
        "tag": partial(by_call, _layer("TAGConv")),
        "relational": partial(with_edges, _edge_layer("RGCNConv", num_relations=3), "edge_type"),
        "attention with edge features": partial(with_edges, _edge_layer("GATConv", edge_dim=8), "edge_attr"),
        "gine": partial(with_edges, _gine, "edge_attr"),
        "graph classification, mean pooling": partial(graph_classifier, "mean"),
        "graph classification, sum pooling": partial(graph_classifier, "add"),
        "graph classification, top k pooling": partial(graph_classifier, "top k"),
        "link prediction": link_prediction,
        "point cloud": point_cloud,
        "model GCN": partial(library_model, "GCN"),
        "model GraphSAGE": partial(library_model, "GraphSAGE"),
        "model GAT": partial(library_model, "GAT"),
        "model GIN": partial(library_model, "GIN"),
        "model EdgeCNN": partial(library_model, "EdgeCNN"),
    }
    return [Case("geometric", name, build) for name, build in table.items()]


def _gine() -> Any:
    from torch_geometric import nn

    return nn.GINEConv(nn.MLP([FEATURES, 32, 32]), edge_dim=8)
