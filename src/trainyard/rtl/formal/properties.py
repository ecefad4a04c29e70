"""The properties that are checked, with the sizes and the number of cycles; `python -m trainyard.rtl.formal.properties` runs them.

A bound is a bound: what is said of 8 cycles holds for 8 cycles from reset. The numbers are chosen so that a pair goes through a
staging buffer, and a cluster is passed over as often as it can be, with some cycles to spare (tests tighten the bounds by one, and
break the designs, to see the checks fail). Sizes are small because the work grows fast; the generators are the same at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amaranth.lib.wiring import Component

from trainyard.rtl.dsc import ArbiterDesign
from trainyard.rtl.formal.adders import AddersUnclaimed
from trainyard.rtl.formal.pairs import IssuedOnce, NoneLost
from trainyard.rtl.formal.solver import Verdict, check
from trainyard.rtl.formal.tokens import NoStarvation, TokensAreKept
from trainyard.rtl.reduction.fan import FanRouting
from trainyard.rtl.tensordash.row_scheduler import RowScheduler
from trainyard.rtl.tensordash.scheduler import PromotionScheduler, SchedulerDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """What is said, of which design, for how many cycles (None: there are no registers, all inputs are covered)."""

    design: str
    says: str
    sizes: str
    cycles: int | None
    monitor: Callable[[], Component]

    def check(self) -> Verdict:
        return check(self.monitor(), self.cycles)


ONCE = "a pair is issued once at most, none with a zero, what is left stays in Z, the current step drains"
NONE_LOST = "each effectual pair is issued exactly once before its step leaves the staging buffer"
OWNERS = "never more owners than tokens, a grant goes to who waits, a free token is granted in time"
STARVATION = "no cluster is passed over by more grants than the simulator's bound"
ADDERS = "no adder has operands of two dot products, no lane counts twice, every sum leaves once and whole"


def properties() -> Iterator[Property]:
    """All of them, TensorDash's, the DSC's, FAN's."""
    for scheduler in (SchedulerDesign(), SchedulerDesign(depth=3), SchedulerDesign(lanes=16, depth=3, levels="grouped")):
        yield Property(
            design=scheduler.name,
            says=ONCE,
            sizes=f"{scheduler.lanes} lanes, {scheduler.depth} deep",
            cycles=None,
            monitor=lambda design=scheduler: IssuedOnce(PromotionScheduler(design.scheduler)),  # type: ignore[misc]
        )
    for scheduler, banks in ((SchedulerDesign(), 4), (SchedulerDesign(depth=3), 2)):
        yield Property(
            design="tensordash-element",
            says=NONE_LOST,
            sizes=f"{scheduler.lanes} lanes, {scheduler.depth} deep, {banks} banks",
            cycles=8,
            monitor=lambda design=scheduler, banks=banks: NoneLost(RowScheduler(design.scheduler, banks=banks)),  # type: ignore[misc]
        )
    for order in ("round_robin", "first_come", "priority"):
        arbiter = ArbiterDesign(clusters=3, order=order, levels=2)
        sizes, cycles = f"3 clusters, {order}", 14
        yield Property(
            design=arbiter.name,
            says=OWNERS,
            sizes=sizes,
            cycles=cycles,
            monitor=lambda design=arbiter: TokensAreKept(design.build(), design.tokens),  # type: ignore[misc]
        )
        yield Property(
            design=arbiter.name,
            says=STARVATION,
            sizes=sizes,
            cycles=cycles,
            monitor=lambda design=arbiter: NoStarvation(design.build(), design.rules),  # type: ignore[misc]
        )
    for lanes in (4, 8):
        yield Property(
            design="fan",
            says=ADDERS,
            sizes=f"{lanes} lanes",
            cycles=None,
            monitor=lambda lanes=lanes: AddersUnclaimed(FanRouting(lanes), lanes),  # type: ignore[misc]
        )


def main() -> int:
    """Prints a line for each property; the number of those that do not hold is the exit status."""
    failed = 0
    for checked in properties():
        verdict = checked.check()
        failed += not verdict.holds
        reach = "all inputs" if checked.cycles is None else f"{checked.cycles} cycles"
        print(f"{'holds' if verdict.holds else 'FAILS'}  {checked.design} ({checked.sizes}, {reach}): {checked.says}", flush=True)
        if not verdict.holds:
            print(verdict.counterexample)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
