"""Groups of codes for `causes`: the checks whose findings follow from a fault of one layer."""

NVML_CODES = ("DRV003",)
GPU_USE_CODES = ("DRV005", "GPU002", "GPU003", "GPU005")
"""Checks of readings that are missing or wrong while the driver does not work."""
CONTAINER_START_CODES = ("CTK013", "CON011", "PRJ041")
"""Checks of the start of a container."""
POD_CODES = ("POD001", "POD002", "POD003")
TOOLKIT_CODES = (
    "CTK001",
    "CTK002",
    "CTK003",
    "CTK004",
    "CTK005",
    "CTK007",
    "CTK008",
    "CTK009",
    "CTK010",
    "CTK011",
    "CTK012",
    "CTK014",
    "CTK015",
)
"""Checks of what GPU containers need from the Container Toolkit, without its security fixes (CTK006)."""
CDI_CODES = ("CDI001", "CDI002", "CDI003", "CDI004", "CDI005", "CDI006", "CDI007", "CDI008", "CDI009", "CDI010")
RUNNING_CONTAINER_CODES = ("CON006", "CON007", "CON008", "CON010", "CON012")
"""Checks of running containers, as the engine describes them."""
DEEP_CODES = ("CUD011", "PYT017", "PYT018", "PYT019", "PYT020")
"""Checks that need --deep."""
CUDA_CODES = ("CUD001", "CUD002", "CUD003", "CUD004", "CUD005", "CUD006", "CUD007", *DEEP_CODES)
CONTAINER_CODES = ("CON001", "CON002", "CON005")
PYTHON_CODES = (
    "PYT001",
    "PYT002",
    "PYT003",
    "PYT004",
    "PYT005",
    "PYT006",
    "PYT011",
    "PYT012",
    "PYT015",
    "PYT016",
    "PYT025",
)
NEEDS_DRIVER_CODES = (
    *NVML_CODES,
    *GPU_USE_CODES,
    *TOOLKIT_CODES,
    *POD_CODES,
    *CDI_CODES,
    *RUNNING_CONTAINER_CODES,
    *CONTAINER_START_CODES,
    *CUDA_CODES,
    *CONTAINER_CODES,
    *PYTHON_CODES,
)
"""All checks above the driver, which mean nothing until it works."""
NEEDS_CONTAINER_GPU_CODES = (*NVML_CODES, *GPU_USE_CODES, "CON002", "CON004", "CON005", *CUDA_CODES, *PYTHON_CODES)
"""All checks inside a container that mean nothing without its GPU."""
