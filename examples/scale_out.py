"""From 8 to 1024 devices: switched planes beside nodes that pass messages; and a model that needs the pool behind its devices."""

from dataclasses import replace

import trainyard as ty
from trainyard.machines.presets.mcdla import ETHERNET, INFINIBAND, PLANES

SYSTEMS = {"planes of switches": PLANES, "InfiniBand": INFINIBAND, "Ethernet": ETHERNET}
VIDEOS = 4  # for each device: 19.7 GB of device memory, were nothing paged


def main() -> None:
    print("bert-large, 8 samples a device, nothing paged: ms a step")
    for name, system in SYSTEMS.items():
        times = []
        for devices in (8, 64, 1024):
            node = replace(system, devices=devices, overlay="off")
            times.append(f"{devices} devices {1e3 * ty.run('bert-large', batch=8 * devices, on=node).time_s:7.1f}")
        print(f"  {name:20}", ", ".join(times))

    print("\nvideo-captioning on planes of 64 devices of 16 GB, maps paged as needed")
    node = replace(PLANES, devices=64, overlay="as_needed", capacity_bytes=16_000_000_000)
    result = ty.run("video-captioning", batch=VIDEOS * 64, on=node)
    print(f"  {1e3 * result.time_s:.0f} ms a step; {'; '.join(result.notes)}")


if __name__ == "__main__":
    main()
