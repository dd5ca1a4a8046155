"""The harness behind FK server: leases a device, runs a candidate kernel in a sandbox, and decides on it."""

__version__ = "0.1.0"
