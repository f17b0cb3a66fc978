"""Which codes belong together: what a check silences is named by the layer that cannot work without it."""

NVML = ("DRV003",)
GPU_USE = ("DRV005", "GPU002", "GPU003", "GPU005")
"""What cannot be seen, or is seen wrong, while the driver does not work."""

ATTEMPTS = ("CTK013", "CON011")
"""What shows when a container is really started."""

TOOLKIT = ("CTK001", "CTK002", "CTK003", "CTK004", "CTK005", "CTK007", "CTK008", "CTK009", "CTK010", "CTK011", "CTK012")
"""All that GPU containers need of the Container Toolkit; its security floor (CTK006) stands alone."""

CDI = ("CDI001", "CDI002", "CDI003", "CDI004", "CDI005", "CDI006", "CDI007", "CDI008")
RUNNING = ("CON006", "CON007", "CON008", "CON010", "CON012")
"""What the engine says of the containers that run on it."""

TRIED = ("CUD011", "PYT017", "PYT018", "PYT019", "PYT020")
"""What the deep tier finds by trying it."""

CUDA = ("CUD001", "CUD002", "CUD003", "CUD004", "CUD005", "CUD006", "CUD007", *TRIED)
CONTAINER = ("CON001", "CON002", "CON005")
PYTHON = ("PYT001", "PYT002", "PYT003", "PYT004", "PYT005", "PYT006", "PYT011", "PYT012", "PYT015", "PYT016")

WITHOUT_DRIVER = (*NVML, *GPU_USE, *TOOLKIT, *CDI, *RUNNING, *ATTEMPTS, *CUDA, *CONTAINER, *PYTHON)
"""Everything above the driver. Nothing there can be trusted until it works."""

WITHOUT_GPU_IN_CONTAINER = (*NVML, *GPU_USE, "CON002", "CON004", "CON005", *CUDA, *PYTHON)
"""Everything inside a container that was given no GPU."""
