"""Which sizes of a workload fit a device, where they get slower, and what lowers their memory."""
