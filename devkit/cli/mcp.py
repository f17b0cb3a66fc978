"""`devkit mcp`: answer AI assistants over the Model Context Protocol."""

from pathlib import Path

import click

from devkit.cli.command import PROJECT, Command, facts_option
from devkit.errors import DevkitError
from devkit.release import INSTALL_MCP_COMMAND


@click.command(cls=Command)
@click.option(
    "--project", metavar="DIR", default=".", type=PROJECT, help="The project to read. Default: this directory."
)
@facts_option("Answer for a saved machine instead of this one. May be repeated for a host and its container.")
@click.option(
    "--http",
    "port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve http://127.0.0.1:PORT/mcp instead of standard input and output.",
)
def mcp(*, project: Path, facts_files: tuple[Path, ...], port: int | None) -> None:
    """Serve doctor, explain, plan, estimate, init, fixes and verify as tools for AI assistants.

    A tool changes files only after showing the diff. Editors start this command: see the guide "AI assistants".
    """
    from devkit.probe.saved_facts import load_saved_facts

    facts = load_saved_facts(facts_files) if facts_files else None  # first: importing the server takes seconds
    try:
        from devkit.cli.mcp_server import MAX_REQUEST_BYTES, build_server
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "devkit":
            raise
        raise DevkitError(
            f"the package {error.name or 'mcp'} is missing, or its release is not 2",
            f"Install it with devkit: {INSTALL_MCP_COMMAND}",
        ) from None
    server = build_server(project=project.resolve(), facts=facts, facts_files=facts_files)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port, max_request_body_size=MAX_REQUEST_BYTES)
