"""GPUs: driver, PCI bus, NVML, AMD, and the kernel log."""
