"""Systems: devices with links and memory pools, each making a Plan of a Step.

May import everything up to devices. A new system is one file with a class that has `plan(step, masks)`.
"""

from trainyard.systems.replicas import Replicas
from trainyard.systems.single import Single

__all__ = ["Replicas", "Single"]
