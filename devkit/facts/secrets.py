"""Secrets in a text, known by their shape or by the key, option or program beside them: the one vocabulary of devkit."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import TypeVar, cast

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
