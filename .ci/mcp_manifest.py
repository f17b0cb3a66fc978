"""Print server.json, which `mcp-publisher` sends to the registry of MCP servers.

Source: https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json. An identifier takes no extra of a
package, so uvx adds what the extra `mcp` holds.
"""

import json
import runpy
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
version = runpy.run_path(str(ROOT / "devkit/release.py"))["__version__"]
repository = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
owner = repository.removeprefix("https://github.com/").partition("/")[0]
needed = project["project"]["optional-dependencies"]["mcp"]
package = {
    "registryType": "pypi",
    "identifier": project["project"]["name"],
    "version": version,
    "runtimeHint": "uvx",
    "runtimeArguments": [{"type": "named", "name": "--with", "value": each} for each in needed],
    "packageArguments": [{"type": "positional", "value": "mcp"}],
    "transport": {"type": "stdio"},
}
manifest = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": f"io.github.{owner}/devkit",
    "description": project["project"]["description"],
    "repository": {"url": repository, "source": "github"},
    "version": version,
    "packages": [package],
}
sys.stdout.write(json.dumps(manifest, indent=2) + "\n")
