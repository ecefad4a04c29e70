"""`python -m trainyard.papers.stacking [network ...]`: what each idea adds alone, with all others, and by its fair share."""

from __future__ import annotations

import math
import sys

from trainyard.errors import TrainyardError
from trainyard.papers.stacking.networks import NETWORKS
from trainyard.papers.stacking.study import SKIPPING, study


def main(names: list[str]) -> int:
    if {"-h", "--help"} & {*names}:
        print(f"{__doc__}\nnetworks: {', '.join(NETWORKS)}; all by default")
        return 0
    try:
        for name in names or list(NETWORKS):
            found = study(name)
            print(f"{name}: {found.base.samples_per_s:,.0f} samples/s without any of them")
            for array in SKIPPING:
                effects = found.effects(array)
                print(
                    f"  with {array}: {effects.speedup:.3f}x together, {effects.interaction:.3f}x more than each alone multiplied"
                )
                for idea in effects.ideas:
                    share = math.exp(effects.shapley[idea])
                    alone, last = effects.alone(idea), effects.with_all(idea)
                    print(f"    {idea:<9}{alone:8.3f}x alone {last:8.3f}x with all {share:8.3f}x Shapley")
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
