"""What an attention call costs: its ledger in closed form, and the time that a device would need for it."""

from refsim.cost import closed_form, devices
from refsim.cost.device import Device
from refsim.cost.roofline import Estimate, KernelTime, estimate

__all__ = ["Device", "Estimate", "KernelTime", "closed_form", "devices", "estimate"]
