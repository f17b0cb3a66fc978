"""The files of a Compose project as one tree of services: overrides, includes and extends followed."""

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from devkit.probe.documents import ABSENT, Kind, Node, WrongDocument, merged, read_yaml
from devkit.probe.project_files import ProjectFiles

MOST_EXTENDS = 10
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?[^}]*\}|\$(\w+)")


@dataclass(frozen=True)
class ServiceTree:
    """One service with everything merged. `chosen` maps a file that a variable chooses to that variable's text.

    `others` are the services that other values of that variable would choose. `names` holds what the service is
    called in each file.
    """

    name: str
    node: Node
    chosen: dict[str, str] = field(default_factory=dict)
    others: tuple[Node, ...] = ()
    names: dict[str, str] = field(default_factory=dict)


class ComposeTree:
    """Reads each file once. Broken and missing ones are remembered by `ProjectFiles`."""

    def __init__(self, files: ProjectFiles) -> None:
        self._files = files
        self._read: dict[str, Node] = {}
        self._listed: list[str] = []

    def services(self, named: Iterable[Node | str]) -> tuple[ServiceTree, ...]:
        """The services of the files, later files over earlier ones."""
        roots = [self._root(name) for name in named]
        self._listed = [root.file for root in roots if root]
        together: dict[str, ServiceTree] = {}
        for root in [inner for outer in roots for inner in (*self._included(outer, 0), outer)]:
            for name, node in root.at("services").fields.items():
                tree = self._extended(name, node, 0)
                before = together.get(name)
                if before is not None:
                    tree = ServiceTree(
                        name,
                        merged(before.node, tree.node),
                        before.chosen | tree.chosen,
                        (*before.others, *tree.others),
                        before.names | tree.names,
                    )
                together[name] = tree
        return tuple(tree for tree in together.values() if tree.node.fields)

    def _root(self, name: Node | str) -> Node:
        """The whole document of a file, absent when there is none or it is broken."""
        if isinstance(name, Node):
            text, beside, line = name.text.replace("${localWorkspaceFolder}", self._files.folder), name.file, name.line
        else:
            text, beside, line = name, "", 0
        path = self._files.within(text, beside=beside)
        if path is not None and path in self._read:
            return self._read[path]
        content = self._files.read(text, "compose", named_by=beside, line=line)
        root = ABSENT if content is None or path is None else self._parsed(content, path)
        if path is not None:
            self._read[path] = root
        return root

    def _parsed(self, text: str, path: str) -> Node:
        try:
            root = read_yaml(text, file=path)
        except WrongDocument as wrong:
            self._files.broken(path, wrong.problem, wrong.line)
            return ABSENT
        services = root.at("services")
        if services and services.kind is not Kind.OBJECT:
            self._files.broken(path, "services is not a mapping", services.line)
            return ABSENT
        return root

    def _included(self, root: Node, depth: int) -> Iterator[Node]:
        if depth > MOST_EXTENDS:
            return
        for item in root.at("include").items:
            paths = item.at("path").items or (item.at("path") or item,)
            for node in paths:
                if node.is_plain and "$" not in node.text and "://" not in node.text:
                    inner = self._root(node)
                    yield from self._included(inner, depth + 1)
                    yield inner

    def _extended(self, name: str, node: Node, depth: int) -> ServiceTree:
        """A service over the one that it extends, which a variable in the file's name may choose."""
        extends = node.at("extends")
        if not extends or depth > MOST_EXTENDS:
            return ServiceTree(name, node, names={node.file: name})
        wanted = extends.at("service").text or extends.text
        file = extends.at("file")
        if not file:
            bases = [(self._read.get(node.file, ABSENT), "")]
        else:
            bases = [
                (self._root(replace(file, text=self._from_folder(path, file))), chosen)
                for path, chosen in self._candidates(file)
            ]
        found = [
            (self._extended(wanted, root.at("services", wanted), depth + 1), chosen)
            for root, chosen in bases
            if root.at("services", wanted)
        ]
        if not found:
            return ServiceTree(name, node, names={node.file: name})
        base, variable = found[0]
        chosen = dict(base.chosen)
        if variable:
            chosen |= dict.fromkeys((tree.node.file for tree, _ in found), variable)
        others = (*base.others, *(tree.node for tree, _ in found[1:]))
        # The lines of the service are those of the file that names it, not of what it extends.
        whole = replace(merged(base.node, node), file=node.file, line=node.line)
        names = {file: called for tree, _ in found for file, called in tree.names.items()} | {node.file: name}
        return ServiceTree(name, whole, chosen, others, names)

    def _candidates(self, file: Node) -> list[tuple[str, str]]:
        """The files that a name with a variable in it may mean, the default first; each with the variable's text."""
        variable = _VARIABLE.search(file.text)
        if variable is None:
            return [(file.text, "")]
        default = _VARIABLE.sub(lambda found: found[2] or "", file.text)
        folder, _, name = file.text.rpartition("/")
        shape = re.compile(".*".join(re.escape(part) for part in _VARIABLE.split(name)[::4]))
        beside = posixpath.join(posixpath.dirname(self._named_from(file)) or ".", folder)
        names = [other for other in self._files.names(beside) if shape.fullmatch(other)] if "$" not in folder else []
        paths = [f"{folder}/{other}" if folder else other for other in names]
        return [(path, variable[0]) for path in sorted(paths, key=lambda path: path != default)]

    def _named_from(self, node: Node) -> str:
        """The file that a path is relative to: the first one listed, for every file of the list.

        Source: Docker, "Merge Compose files": "all paths in the files are relative to the base Compose file".
        """
        return self._listed[0] if node.file in self._listed else node.file

    def _from_folder(self, path: str, node: Node) -> str:
        start = self._named_from(node)
        if start == node.file or path.startswith("/"):
            return path
        return posixpath.join(self._files.folder, posixpath.dirname(start), path)
