"""Builders of nodes: the interconnects of MC-DLA and their relatives, with every number a parameter.

Y. Kwon, M. Rhu: Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning. MICRO 2018. Devices are D0, D1,
..., memory-nodes M0, ..., sockets S0, ..., PCIe switches P0, ..., planes of a big switch X0, ... Rings are not written here: they
follow from the wires (`hardware.topology.rings`), and so do backing memories (`Topology.stores`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trainyard.checks import require_positive
from trainyard.errors import BadInput, NotModelled
from trainyard.hardware.topology.graph import Place, Topology, Wire

# The three rings of DGX-1V's hybrid cube mesh (Fig. 5 shows them; which wire lies in which ring is our reading). Their 24 wires are
# its link table, as `nvidia-smi topo -m` prints it: D0 has one link to D1 and D2, two to D3 and D4, and so on; six to a device.
CUBE_MESH = (
    (0, 1, 2, 3, 7, 6, 5, 4),
    (0, 3, 2, 1, 5, 6, 7, 4),
    (0, 2, 6, 4, 7, 5, 1, 3),
)

# Of Fig. 7b the text prints the hop counts 8, 12 and 20 of its rings, that a device has two links to memory-nodes, and that links
# stay idle; the wiring is a picture. Our reading: 16 wires of the cube mesh stay, one ring and both wires of four double links. The
# devices take seats on a circle of memory-nodes, one wire to either side: M_k joins the devices of the seats k - 1 and k; and the
# memory-nodes make two rings. Then a ring of 12 goes alternately over a wire of a double link and over one of four memory-nodes; a
# ring of 20 over the other wire and over three memory-nodes, four of which it passes twice. A second ring among devices alone would
# give 8/8/16.
FOLDED_RING = (0, 1, 5, 7, 3, 2, 6, 4)
FOLDED_DOUBLE = ((0, 3), (1, 2), (4, 7), (5, 6))
FOLDED_SEATS = (0, 3, 1, 2, 4, 7, 6, 5)

Pair = tuple[int, int]


def cube_mesh(
    *,
    devices: int = 8,  # Sec. IV
    links: int = 6,  # Table II
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    pcie_bytes_per_s: float,
    pcie_latency_s: float = 0.0,
    devices_per_switch: int = 2,  # as in DGX-1: two GPUs on each PCIe switch
    sockets: int = 2,  # Sec. IV
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
) -> Topology:
    """DC-DLA: devices joined in a cube mesh, and in groups on PCIe switches with one uplink to a socket each.

    Other than eight devices are joined in rings of all their links.

    >>> node = cube_mesh(link_bytes_per_s=25e9, pcie_bytes_per_s=12e9)
    >>> len(node.wires_at("D0")), [store.place for store in node.stores("D5")]
    (7, ['S1'])
    """
    require_positive("cube_mesh", devices=devices, links=links)
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(devices)
    draft.join("D", "D", _device_wires(devices, links))
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    draft.host(devices, devices_per_switch, sockets, pcie_bytes_per_s, pcie_latency_s)
    return draft.topology("cube mesh" if devices == 8 else "rings of devices")


def host_centric(
    *,
    devices: int = 8,  # Sec. IV
    links: int = 6,  # Table II
    host_links: int = 3,  # Sec. IV: half of them
    devices_per_socket: int = 4,  # Sec. IV
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
) -> Topology:
    """HC-DLA (Sec. IV): `host_links` of each device's links go to its socket, four devices a socket; the others join the devices.

    k links that are left for the devices carry as much as k directed rings, also if k is odd: see `_shared_wires`. A single one
    joins pairs of devices, and no ring is left.
    """
    require_positive("host_centric", devices=devices, links=links, host_links=host_links, devices_per_socket=devices_per_socket)
    if host_links > links:
        raise BadInput(f"host_centric: {host_links} of {links} links cannot go to the host")
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(devices)
    between = links - host_links
    if between % 2 and between > 1 and devices > 2 and devices % 2 == 0:
        draft.join("D", "D", _shared_wires(devices, between), share=0.5)
    else:
        draft.join("D", "D", _device_wires(devices, between))
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    draft.stores("socket", "S", -(-devices // devices_per_socket))
    draft.join("D", "S", [(device, device // devices_per_socket) for device in range(devices) for _ in range(host_links)])
    return draft.topology("host-centric")


def star(
    *,
    devices: int = 8,  # Sec. IV
    links: int = 6,  # Table II
    folded: bool = False,
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
) -> Topology:
    """MC-DLA with memory-nodes as a star (Fig. 7a), or folded inward (Fig. 7b, the evaluated MC-DLA(S)).

    Fig. 7a, as printed: one of the cube mesh's rings gives its wires up; D_n has two wires to M_n, the memory-nodes make a ring,
    which the third device ring passes (24 hops, each memory-node twice), and another ring of their own that stays idle. Which two
    rings of the cube mesh stay is our choice. For Fig. 7b see the comment above `FOLDED_RING`.

    >>> from trainyard.hardware.topology.rings import rings
    >>> [ring.hops for ring in rings(star(link_bytes_per_s=25e9), directions="one")]
    [8, 8, 24]
    >>> [ring.hops for ring in rings(star(folded=True, link_bytes_per_s=25e9), directions="one")]
    [8, 12, 20]
    """
    require_positive("star", devices=devices, links=links)
    if links < 4:
        raise BadInput(f"star: a memory-node needs two links to its device and two to its neighbours, got links={links}")
    if folded and (devices, links) != (8, 6):
        raise NotModelled(f"a folded star is known for 8 devices of 6 links (Fig. 7b), not for {devices} of {links}")
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(devices)
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    draft.stores("memory", "M", devices)
    if folded:
        draft.join("D", "D", [*_circle(FOLDED_RING), *(pair for pair in FOLDED_DOUBLE for _ in range(2))])
        for seat, device in enumerate(FOLDED_SEATS):
            draft.join("D", "M", [(device, seat), (device, (seat + 1) % devices)])
    else:
        draft.join("D", "D", _device_wires(devices, links - 2))
        draft.join("D", "M", [(device, device) for device in range(devices) for _ in range(2)])
    for _ in range((links - 2) // 2):
        draft.join("M", "M", _circle(range(devices)))
    return draft.topology("folded star" if folded else "star")


def memory_ring(
    *,
    devices: int = 8,  # Sec. IV
    links: int = 6,  # Table II
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
) -> Topology:
    """MC-DLA's ring (Fig. 7c, 8): M_n lies between D_n and D_n+1, half of a device's links lead to either neighbour.

    >>> node = memory_ring(link_bytes_per_s=25e9, memory_bytes_per_s=256e9)
    >>> [(store.place, len(store.lanes), store.bytes_per_s) for store in node.stores("D1")]
    [('M0', 3, 128000000000.0), ('M1', 3, 128000000000.0)]
    """
    require_positive("memory_ring", devices=devices, links=links)
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(devices)
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    draft.stores("memory", "M", devices)
    for link in range(links):
        draft.join("D", "M", [(device, (device - link % 2) % devices) for device in range(devices)])
    return draft.topology("memory ring")


def switched(
    *,
    devices: int = 16,  # DGX-2
    memory_nodes: int = 0,
    links: int = 6,  # Table II
    planes: int = 6,  # DGX-2: each link of a device leads to another NVSwitch
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
    pcie_bytes_per_s: float | None = None,
    pcie_latency_s: float = 0.0,
    devices_per_switch: int = 2,  # as in DGX-1: two GPUs on each PCIe switch
    sockets: int = 2,  # Sec. IV
) -> Topology:
    """Devices, and memory-nodes if any, on `planes` of a big switch: link i of each leads to plane i modulo `planes`.

    Memory-node i serves device i; with fewer memory-nodes they are dealt round, with more a device has several. With
    `pcie_bytes_per_s` the devices also hang on PCIe switches below sockets, which is DC-DLA at the size of DGX-2.
    """
    require_positive("switched", devices=devices, links=links, planes=planes)
    if memory_nodes:
        require_positive("switched", memory_nodes=memory_nodes)
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(devices)
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    if memory_nodes:
        clients: list[list[str]] = [[] for _ in range(memory_nodes)]
        for number_of in range(max(devices, memory_nodes)):
            clients[number_of % memory_nodes].append(f"D{number_of % devices}")
        draft.stores("memory", "M", memory_nodes, serves=clients)
    draft.places += [Place(name=f"X{plane}", kind="switch") for plane in range(planes)]
    for kind, count in (("D", devices), ("M", memory_nodes)):
        draft.join(kind, "X", [(number, link % planes) for number in range(count) for link in range(links)])
    if pcie_bytes_per_s is not None:
        draft.host(devices, devices_per_switch, sockets, pcie_bytes_per_s, pcie_latency_s)
    return draft.topology("switched")


def one_device(
    *,
    link_bytes_per_s: float,
    link_latency_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
    memory_latency_s: float = 0.0,
    capacity_bytes: int | None = None,
) -> Topology:
    """One device on one socket by one link (Fig. 2: PCIe)."""
    draft = _Draft(link_bytes_per_s, link_latency_s)
    draft.devices(1)
    draft.memory(memory_bytes_per_s, memory_latency_s, capacity_bytes)
    draft.stores("socket", "S", 1)
    draft.join("D", "S", [(0, 0)])
    return draft.topology("one device")


# ---- wires between devices
def _device_wires(devices: int, links: int) -> list[Pair]:
    """Rings of two links a device; an odd link joins neighbours in pairs."""
    if devices == 1:
        return []
    if devices == 2:
        return [(0, 1)] * links
    orders: Sequence[Sequence[int]] = CUBE_MESH if devices == 8 else (range(devices),)
    pairs = [pair for turn in range(links // 2) for pair in _circle(orders[turn % len(orders)])]
    return pairs + [(device, device + 1) for device in range(0, devices - 1, 2) if links % 2]


def _shared_wires(devices: int, links: int) -> list[Pair]:
    """An odd number of links, each written as two wires of half its rate, so that two rings may share a link.

    Three links of every device cannot be three directed rings without a common arc unless the number of devices is 2 modulo 4. For
    let f lead each arc to the next one of its ring: three cycles of n arcs, an odd permutation if n is even. But f is first the
    exchange of each wire's two arcs, 3 n / 2 of them, then at each device a permutation of its three links that leaves none in
    place, which is even. So 3 n / 2 must be odd. Halves do it for any even n: a circle and chords 0-2, 1-4, 3-6, 5-8, ... are three
    sets of pairs (every second wire of the circle, the others, the chords), any two of which make a ring: three rings each way at
    half the rate.
    """
    chords = [(0, 2), *((odd, odd + 3) for odd in range(1, devices - 4, 2)), (devices - 3, devices - 1)]
    cubic = [*_circle(range(devices)), *chords]
    return [pair for pair in [*cubic, *_device_wires(devices, links - 3)] for _ in range(2)]


def _circle(order: Iterable[int]) -> list[Pair]:
    """Neighbours on a circle; of one, none.

    >>> _circle((0, 2, 1))
    [(0, 2), (2, 1), (1, 0)]
    """
    order = tuple(order)
    return [(here, order[(number + 1) % len(order)]) for number, here in enumerate(order)] if len(order) > 1 else []


@dataclass(slots=True)
class _Draft:
    """A topology being written: places and wires by kind and number."""

    link_bytes_per_s: float
    link_latency_s: float
    places: list[Place] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    memory_bytes_per_s: float | None = None
    memory_latency_s: float = 0.0
    capacity_bytes: int | None = None

    def devices(self, count: int) -> None:
        self.places += [Place(name=f"D{number}", kind="device") for number in range(count)]

    def memory(self, bytes_per_s: float | None, latency_s: float, capacity_bytes: int | None) -> None:
        """What each memory-node or socket has."""
        self.memory_bytes_per_s, self.memory_latency_s, self.capacity_bytes = bytes_per_s, latency_s, capacity_bytes

    def stores(self, kind: str, letter: str, count: int, serves: Sequence[Sequence[str]] = ()) -> None:
        self.places += [
            Place(
                name=f"{letter}{number}",
                kind="memory" if kind == "memory" else "socket",
                memory_bytes_per_s=self.memory_bytes_per_s,
                latency_s=self.memory_latency_s,
                capacity_bytes=self.capacity_bytes,
                serves=tuple(serves[number]) if serves else (),
            )
            for number in range(count)
        ]

    def join(self, a: str, b: str, pairs: Iterable[Pair], *, share: float = 1.0) -> None:
        rate = self.link_bytes_per_s * share
        self.wires += [Wire(a=f"{a}{x}", b=f"{b}{y}", bytes_per_s=rate, latency_s=self.link_latency_s) for x, y in pairs]

    def host(self, devices: int, devices_per_switch: int, sockets: int, bytes_per_s: float, latency_s: float) -> None:
        """PCIe: neighbours in groups on switches, an uplink each, distributed evenly to the sockets."""
        require_positive("PCIe", devices_per_switch=devices_per_switch, sockets=sockets)
        switches = -(-devices // devices_per_switch)
        sockets = min(sockets, switches)
        self.places += [Place(name=f"P{number}", kind="switch") for number in range(switches)]
        self.stores("socket", "S", sockets)
        ends = [(f"D{device}", f"P{device // devices_per_switch}") for device in range(devices)]
        ends += [(f"P{switch}", f"S{switch * sockets // switches}") for switch in range(switches)]
        self.wires += [Wire(a=a, b=b, bytes_per_s=bytes_per_s, latency_s=latency_s) for a, b in ends]

    def topology(self, name: str) -> Topology:
        return Topology(places=tuple(self.places), wires=tuple(self.wires), name=name)
