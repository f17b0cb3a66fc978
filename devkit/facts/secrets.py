"""Secrets in a text, known by their shape or by the key, option or program beside them: the one vocabulary of devkit.

Facts without them, and without names of people, machines or boards, can be shown to strangers.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from devkit.facts.machine import System
from devkit.facts.model import Facts

T = TypeVar("T")
_PREFIXED = (
    *(r"(?:hf|api_org)_[A-Za-z0-9]{10,}", r"gh[opusr]_[A-Za-z0-9]{20,}", r"github_pat_[A-Za-z0-9_]{20,}"),
    *(r"glpat-[A-Za-z0-9_-]{10,}", r"sk-[A-Za-z0-9_-]{16,}", r"nvapi-[A-Za-z0-9_-]{16,}"),
    *(r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])", r"xox[abprs]-[A-Za-z0-9-]{10,}"),
    *(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", r"dckr_pat_[A-Za-z0-9_-]{10,}"),
    *(r"pypi-[A-Za-z0-9_-]{16,}", r"npm_[A-Za-z0-9]{30,}", r"AIza[A-Za-z0-9_-]{35}", r"ya29\.[A-Za-z0-9_-]{20,}"),
    *(r"GOCSPX-[\w-]{20,}", r"(?:gsk|xai|r8|dapi|tvly|pplx|fw|key)(?:_|-)?[A-Za-z0-9]{32,}"),
    *(r"(?:dop|doo|dor)_v1_[0-9a-f]{32,}", r"hv[sb]\.[A-Za-z0-9_-]{20,}"),
    *(r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}", r"SG\.[\w-]{16,}\.[\w-]{16,}", r"xapp-[A-Za-z0-9-]{10,}"),
    *(r"gl(?:rt|dt|ptt|cbt)-[A-Za-z0-9_-]{10,}", r"ATATT3x[A-Za-z0-9_=-]{20,}", r"ATCTT3x[A-Za-z0-9_=-]{20,}"),
    r"AGE-SECRET-KEY-1[0-9A-Z]{20,}",
)
_SHAPES = (
    *(re.compile(rf"(?<![A-Za-z0-9])(?:{each})") for each in _PREFIXED),
    re.compile(r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    re.compile(r"hooks\.slack\.com/services/[\w/]{20,}|discord(?:app)?\.com/api/webhooks/[\w/-]{20,}"),
    re.compile(r"(?<=AccountKey=)[A-Za-z0-9+/=]{40,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    re.compile(r"(?i)(?<=authorization: )(?:basic|bearer|token) [A-Za-z0-9._~+/=-]{8,}"),
    # hf_, ghp_, glpat- and sk- in base64, as a secret of Kubernetes or a login of Docker holds them.
    re.compile(r"(?<![A-Za-z0-9+/])(?:aGZf|Z2hwX|Z2xwYXQt|c2st)[A-Za-z0-9+/=]{16,}"),
    re.compile(r"(?<=\"auth\": \")[A-Za-z0-9+/=]{8,}"),
)
"""Shapes of access tokens: model hubs, code hosts, clouds, chat, JSON web tokens, registries, keys, headers, netrc."""

_WORD = r"""(?:password|passwd|passphrase|passcode|secrets?|apikey|credentials?
    |passwort|kennwort|contrase(?:ñ|n|%C3%B1)a|mot[ _-]de[ _-]passe|senha|wachtwoord|пароль|密码|密碼|パスワード
    |(?<!(?:pad|eos|bos|unk|sep|cls|max|num|per)[._-])(?<!mask[._-])(?<!special[._-])tokens?
    |(?<!com)(?<!by)(?<!tres)(?<!sur)(?<!im)(?<!over)(?<!under)(?<!ssh)pass
    |(?:(?<![a-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))(?:pwd|pw|psk|otp|cookies?|auth|authorization|pat|dsn|session[._-]?id|pin(?=["']?\s*[:=]\s*["']?[0-9]{4,}(?![\w.]))
      |(?:api|access|secret|private|signing|encryption|account|auth|license|shared|master|session|service)[._ -]?keys?))"""
"""How a key ends whose value is secret."""
_NAME = rf"(?<![\w.-])(?P<key>[\w.-]{{0,80}}?{_WORD}(?:[._-]?(?:value|base|hash|\d{{1,3}}))?)"
_KEY = re.compile(
    rf"""(?ix)
    {_NAME}                                           # a key of any file, log, header or command line
    (?P<between>(?:\\?["'])?\]?\s*(?:[=-]>|:=|<<<|[:=](?:[ ]*[|>][+-]?[ ]*(?=\n))?)\s*|["']\s*,\s*(?=["'])|(?<=-)\s+|>(?=[^<>\s]+</))
    (?:(?P<quote>\\?["'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|.))*)|(?P<bare>(?![{{\[(])(?:[^\s"',;&)}}\]<]|<(?!/))+))
    """
)
"""A value beside a key that says it is secret: of YAML, JSON, XML, INI, a shell, a URL's query or a call."""
_APART = re.compile(rf"""(?ix)(?:{_NAME}|(?<![\w.-])login)["']?[ \t]+["']?(?P<bare>[^\s"',;&)}}\]]{{8,}})""")
"""The same with nothing but a space between them, where only a value that is not a word counts."""
_HEADER = re.compile(
    r"(?i)\b((?:(?:set-)?cookie2?|(?:seed|mnemonic|recovery|backup)[ _-]?(?:phrase|codes?|words))[\"']?\s*[:=]\s*[\"']?)[^\n\"']+"
    r"|\b((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer|token|digest|negotiate|apikey)\s+)?[^\s\"']+"
)
_VALUE = r"""(?:"[^"\n]+"|'[^'\n]+'|[^\s'"]\S*)"""
_PASSWORD_LETTERS = {
    "p": r"mysql\w*|mariadb\w*|mongo\w*|twine|(?:docker|podman|nerdctl|registry|skopeo|az|oc)\s+login",
    "P": "sqlcmd|bcp|zip|unzip",
    "a": "redis-cli",
    "N": "ssh-keygen",
    "w": r"ldap\w+",
}
"""Options of one letter whose value is a password, with the programs that have them."""
_OPTIONS = (
    re.compile(rf"(?ix)(?<!\S)(?P<front>--?(?![a-z-]*tokens[ ])[a-z-]*{_WORD}[ ]+(?:<<<[ ]*)?)(?!-){_VALUE}"),
    re.compile(r"(?<!\S)(?P<front>(?:-[uU]|--user|--proxy-user|--auth)[ =]+)[^\s:%]+[:%]\S+"),
    re.compile(rf"(?<=\bsshpass )(?P<front>-p\s*){_VALUE}"),
    *(
        re.compile(rf"(?P<front>\b(?:{programs})\b[^\n]{{0,120}}?\s-{letter}(?=\S*[a-zA-Z]|\s)[ ]*)(?![$<-]){_VALUE}")
        for letter, programs in _PASSWORD_LETTERS.items()
    ),
    re.compile(r"(?i)(?P<front>[?&][\w.-]{0,80}sig(?:nature)?=)[^\s&\"'#<>]+"),
    re.compile(r"(?P<front>\blogin\s+[^\s]{1,80}\s+password\s+)[^\s$<]\S*"),
)
_SPOKEN = re.compile(
    r"(?i)\b((?:passw(?:or)?d|passphrase|secret)[ ]+(?:is[ ]+|was[ ]+)?)(?!--?[a-z][a-z-]*(?:[ =]|$))"
    r"(?=\S*[^\sa-z.,:;!?'\"()])[^\s'\"$<(]{4,}"
    r"|\b((?:password|identified\s+by)\s+')[^'\n]+(?=')"
)
_HEX_KEY = re.compile(r"(?i)\b((?:(?:api[ _-]?)?key|login|wandb)[\s:='\"]+)[0-9a-f]{40}\b")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_NOT_SECRET = re.compile(
    r"(?i)[\d.,/]*|<.*|\[.*|\$.*|%\w+%|none|null|nil|true|false|yes|no|on|off|not|is|was|unset|missing|required|invalid|expired"
    r"|undefined|empty|redacted.*|x{3,}|\*+|\.{3}|…|str|string|int|bool|bytes|optional\W.*|self\W.*|os\.\w.*|args\W.*|\w+\(.*"
)
"""Values that are a number, a placeholder, a variable, a special token of a model, or code that reads the secret."""
_NUMBER_OF = re.compile(r"(?i)tokens?")
"""Beside these keys a number counts something; beside a password it is one."""
_WORDLIKE = re.compile(r"(?i)[a-z.:_/-]*|[\d.:_/-]*|(?:[\w-]+[./])+[\w:-]*")
"""A word, a number, a host or a path: what follows a key in a sentence."""
CACHED_TEXTS = 1 << 16
"""More than the facts of a machine hold: with fewer, a large machine's texts would be judged again for each format."""


def redact_tokens(value: T) -> T:
    """Return a record without secrets and logins, and otherwise unchanged, for the users of the machine."""
    return rewrite_texts(value, _redact)


def holds_secret(text: str) -> bool:
    """Return True for a text of which something is redacted."""
    return _redact(text) != text


def contains_token(text: str) -> bool:
    """Return True for a text with something of the shape of an access token, whatever is beside it."""
    return any(shape.search(text) for shape in _SHAPES)


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _redact(text: str) -> str:
    for shape in _SHAPES:
        # A private key keeps its lines, so that the ones below it keep their numbers.
        text = shape.sub(lambda found: re.sub("[^\n]+", "redacted", found[0]), text)
    text = _HEADER.sub(lambda found: f"{found[1] or found[2]}redacted", text)
    text = _KEY.sub(_blank_value, text)
    for option in _OPTIONS:
        text = option.sub(r"\g<front>redacted", text)
    text = _SPOKEN.sub(lambda found: f"{found[1] or found[2]}redacted", text)
    text = _APART.sub(_blank_apart, text)
    return _LOGIN.sub("", _HEX_KEY.sub(r"\1redacted", text))


def _blank_value(found: re.Match[str]) -> str:
    value = found["quoted"] if found["quote"] else found["bare"]
    counts = _NUMBER_OF.fullmatch(re.split(r"[._-]", found["key"])[-1])
    if _NOT_SECRET.fullmatch(value) and (counts or not re.fullmatch(r"[\d.,/]+", value)):
        return found[0]
    return f"{found['key']}{found['between']}{found['quote'] or ''}redacted"


def _blank_apart(found: re.Match[str]) -> str:
    value = found["bare"]
    is_word = _WORDLIKE.fullmatch(value) or (value.isalnum() and len(value) < 20)
    if _NOT_SECRET.fullmatch(value) or (is_word and not is_random(value)):
        return found[0]
    return found[0].removesuffix(value) + "redacted"


def is_random(word: str) -> bool:
    """Return True for a word that nobody speaks: capitals, small letters and digits mixed, and not a hexadecimal number."""
    digits = sum(char.isdigit() for char in word)
    mixed = any(char.isupper() for char in word) and any(char.islower() for char in word)
    return mixed and digits >= 3 and not re.fullmatch(r"(?i)0x[0-9a-f]+|[0-9a-f]+", word)


def rewrite_texts(value: T, rewrite: Callable[[str], str]) -> T:
    """Return a record with every text in it rewritten."""
    if type(value) is str:
        return cast("T", rewrite(str(value)))
    if isinstance(value, tuple):
        return cast("T", tuple(rewrite_texts(item, rewrite) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: rewrite_texts(getattr(value, field.name), rewrite) for field in dataclasses.fields(value)
        }
        return cast("T", dataclasses.replace(value, **changed))
    return value


_LONG_WORD = re.compile(r"(?<![\w/.])[A-Za-z0-9_+/=-]{20,}(?![\w/.])")
MAX_DOUBTFUL = 5
"""Lines that are shown; a text with more is read once more anyway."""

_UUID = re.compile(r"((?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SERIAL = re.compile(
    r"(?i)(?<![a-z])(serial(?:[ _-]?(?:number|no))?\.?[ \t]*[:=#]?[ \t]*)(?=[a-z-]*[0-9])[0-9a-z-]{6,}"
)
_HOME = re.compile(
    r"((?:^|(?<=[^\w.-]))(?:/(?:[\w.-]+/){0,3}(?:home|[Uu]sers)/|[A-Za-z]:[\\/]+Users[\\/]+))"
    r"([^/\\:,;'\"\s]+)"
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_PERSON = re.compile(
    r"(?i)(?<![\w-])((?:user|username|login|logname|sudo_user|owner|host|hostname|nodename|nodelist|node|machine)[\"']?\s*[:=]\s*[\"']?)"
    r"(?=[\w.-]*[a-z])([\w][\w.-]+)(?![\w(/])"
)
_PROMPT = re.compile(
    r"(?<![\w.+/@-])([a-z_][\w-]*)@(?!sha\d|v\d|main\b|master\b|latest\b)([A-Za-z][\w-]+)(?=[\s:~$#\])]|$)"
)
_ADDRESS = re.compile(
    r"""(?ix)
    (?<![\w.=+-])(?:192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254)(?:\.\d{1,3}){2}(?![\w.]*\w)
    |(?:(?<=//)|(?<=@)|(?<=[(\[])|(?<=(?<!=)=)|(?<=\bfrom[ ])|(?<=\bto[ ])|(?<=\bon[ ])|(?<=\bat[ ])|(?<=\bip[ ])|(?<=\bhost[ ])
      |(?<=\baddr[ ])|(?<=\baddress[ ])|(?<=\bpeer[ ])|(?<=\bserver[ ])|(?<=\bping[ ])|(?<=\bssh[ ])|(?<=\bconnect[ ])|(?<=:[ ]))
      (?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)
    |(?<![\w.=+-])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?=:\d{2,5}\b)
    """
)
"""Addresses of machines: those of private networks, and any with a port or behind a word that introduces one.

Versions such as 10.3.5.147 have the same form.
"""
_REMOTE = re.compile(
    r"(?<=tcp://)[^/:\s]+|(?<=tcp://\[)[^\]\s]+|(?<=ssh://)(?:[^/@\s]+@)?[^/:\s]+"
    r"|(?<=://)[\w.-]+(?=:\d)"
)
"""Engines elsewhere; and proxies and mirrors, which name a port where the public places of the web have none."""

_LOG_LINE = re.compile(
    r"(?m)^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?) "
    r"([\w.-]+) (?=[\w./-]+(?:\[\d+\])?: )"
)
"""A line of the system's log: the machine's name is between the time and the program."""

_NOT_NAMES = frozenset(
    (
        *("none", "null", "true", "false", "unknown", "name", "user", "host", "container", "image", "project"),
        *("redacted", "wsl", "windows", "linux", "not", "is", "has", "the", "address", "x86_64", "aarch64", "amd64"),
        *("arm64",),
    )
)
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "host"})
_PLAIN_WORDS = frozenset(
    (
        *("user", "proxy", "root", "host", "localhost", "ubuntu", "debian", "fedora", "centos", "rocky", "arch"),
        *("nixos", "linux", "windows", "vscode", "runner", "admin", "Public", "shared", "linuxbrew", "dev", "lib"),
        *("usr", "var", "etc", "proc", "sys", "run", "tmp", "opt", "bin", "srv", "mnt", "media", "home", "data"),
        *("work", "workspace", "project", "docker", "podman", "nvidia", "gpu", "cuda", "torch", "python", "amd64"),
        *("x86_64", "server", "desktop", "laptop", "default"),
    )
)
"""Names that say nothing of a person or a machine, and occur as separate words: `/dev` is not a user's folder."""


@dataclasses.dataclass(frozen=True)
class Redaction:
    """The words to redact for one machine. Build it with `build_redaction`."""

    words: tuple[tuple[str, str], ...]
    """Names of people and machines, each with its replacement."""

    def redact_text(self, text: str) -> str:
        """Return `text` without tokens, logins, addresses, home folders, names, and the last digits of device numbers."""
        return _blanked(text, self.words)

    def of(self, value: T) -> T:
        """Return a record with every text in it redacted."""
        return rewrite_texts(value, self.redact_text)


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _blanked(text: str, words: tuple[tuple[str, str], ...]) -> str:
    # Facts and findings say many things more than once.
    text = _MAIL.sub("mail", redact_tokens(text))
    text = _ADDRESS.sub("address", text)
    text = _PROMPT.sub("user@host", text)
    text = _PERSON.sub(_blank_name, text)
    text = _UUID.sub(r"\1", text)
    text = _SERIAL.sub(r"\1redacted", text)
    text = _HOME.sub(r"\1user", text)
    for word, stand_in in words:
        # A name is blanked inside "name-devcontainer-1" and "name_data" too, not inside of another word.
        text = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", stand_in, text)
    return text


def count_removed(before: str, after: str) -> int:
    """Count the places at which a redaction changed a text."""
    import difflib

    def split(text: str) -> list[str]:
        return re.findall(r"\w+|\W", text)

    total = 0
    for old, new in zip(before.split("\n"), after.split("\n"), strict=False):
        if old != new:
            changes = difflib.SequenceMatcher(None, split(old), split(new), autojunk=False).get_opcodes()
            total += sum(kind != "equal" for kind, *_ in changes)
    return total


def find_doubtful_lines(text: str) -> tuple[str, ...]:
    """Find lines of a redacted text that may still hold a secret: a long word of letters and digits that nothing explains."""
    lines = (line for line in text.splitlines() if any(is_random(word) for word in _LONG_WORD.findall(line)))
    return tuple(dict.fromkeys(lines))[:MAX_DOUBTFUL]


def _blank_name(found: re.Match[str]) -> str:
    if not _is_name(found[2]) or found[2].lower() in _NOT_NAMES:
        return found[0]
    return found[1] + ("user" if re.match(r"(?i)user|log|sudo|owner", found[1]) else "host")


def build_redaction(facts: Facts) -> Redaction:
    """Find what identifies somebody in these facts: users with a home folder, this machine, and remote engines."""
    texts = tuple(_texts(facts))
    people = {match[2] for text in texts for match in _HOME.finditer(text)}
    remote = {match[0].rpartition("@")[2] for text in texts for match in _REMOTE.finditer(text)} - _HERE
    machines = {match[1] for text in texts for match in _LOG_LINE.finditer(text)}
    systems = [side.system for side in (facts, facts.inside) if isinstance(side, Facts)]
    machines |= {each.host_name for each in systems if isinstance(each, System) and isinstance(each.host_name, str)}
    hosts = {name for found in (*remote, *machines) for name in (found, found.partition(".")[0])}
    found = {**dict.fromkeys(hosts, "host"), **dict.fromkeys(people, "user")}
    # The longest first: a short name may be part of a long one.
    return Redaction(tuple(sorted(((n, s) for n, s in found.items() if _is_name(n)), key=lambda pair: -len(pair[0]))))


def redact_facts(facts: Facts) -> Facts:
    """Return the facts with user and host names, home folders, tokens, email addresses and device numbers redacted.

    A user name is one that occurs in a home path; it is redacted wherever else it occurs as a word.
    GPUs stay distinguishable: the first eight digits of a UUID remain.
    """
    return build_redaction(facts).of(facts)


def _is_name(word: str) -> bool:
    """A number is none, nor is a single letter: both stand in too much that says nothing of anybody."""
    return len(word) > 1 and word not in _PLAIN_WORDS and not re.fullmatch(r"[\d.:]+", word)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
