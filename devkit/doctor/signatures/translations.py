"""Messages of the C library, apt, dpkg and bash in German, Chinese and Japanese, by the English ones.

Source: the message catalogs of glibc 2.36, apt 2.6, dpkg 1.21 and bash 5.2.
"""

import re
from collections.abc import Mapping

_PHRASES: Mapping[str, tuple[str, ...]] = {
    "Permission denied": (
        "Keine Berechtigung",
        "許可がありません",
        "权限不够",
    ),
    "No such file or directory": (
        "Datei oder Verzeichnis nicht gefunden",
        "そのようなファイルやディレクトリはありません",
        "没有那个文件或目录",
    ),
    "Cannot allocate memory": (
        "Nicht genügend Hauptspeicher verfügbar",
        "メモリを確保できません",
        "无法分配内存",
    ),
    "No space left on device": (
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar",
        "デバイスに空き領域がありません",
        "设备上没有空间",
    ),
    "Operation not permitted": (
        "Die Operation ist nicht erlaubt",
        "許可されていない操作です",
        "不允许的操作",
    ),
    "Device or resource busy": (
        "Das Gerät oder die Ressource ist belegt",
        "デバイスもしくはリソースがビジー状態です",
        "设备或资源忙",
    ),
    "No such device or address": (
        "Kein passendes Gerät bzw. keine passende Adresse gefunden",
        "そのようなデバイスやアドレスはありません",
        "没有那个设备或地址",
    ),
    "No such device": (
        "Kein passendes Gerät gefunden",
        "そのようなデバイスはありません",
        "没有那个设备",
    ),
    "Address already in use": (
        "Die Adresse wird bereits verwendet",
        "アドレスは既に使用中です",
        "地址已在使用",
    ),
    "Connection refused": (
        "Verbindungsaufbau abgelehnt",
        "接続を拒否されました",
        "拒绝连接",
    ),
    "Connection timed out": (
        "Die Wartezeit für die Verbindung ist abgelaufen",
        "接続がタイムアウトしました",
        "连接超时",
    ),
    "Input/output error": (
        "Eingabe-/Ausgabefehler",
        "入力/出力エラーです",
        "输入/输出错误",
    ),
    "Segmentation fault": (
        "Speicherzugriffsfehler",
        "段错误",
    ),
    "Bus error": (
        "Bus-Zugriffsfehler",
        "バスエラー",
        "总线错误",
    ),
    "Disk quota exceeded": (
        "Der zugewiesene Plattenplatz (Quota) ist überschritten",
        "ディスク使用量制限を超過しました",
        "超出磁盘限额",
    ),
    "cannot open shared object file": (
        "Kann die Shared-Object-Datei nicht öffnen",
        "共有オブジェクトファイルを開けません",
        "无法打开共享对象文件",
    ),
    "Illegal instruction": (
        "Ungültiger Maschinenbefehl",
        "非法指令",
    ),
    "Too many open files": (
        "Zu viele offene Dateien",
        "ファイルを開きすぎです",
        "打开的文件过多",
    ),
    "Read-only file system": (
        "Das Dateisystem ist nur lesbar",
        "読み込み専用ファイルシステムです",
        "只读文件系统",
    ),
    "Exec format error": (
        "Fehler im Format der Programmdatei",
        "可执行文件格式错误",
        "実行形式エラー",
    ),
    "Invalid argument": (
        "Das Argument ist ungültig",
        "無効な引数です",
        "无效的参数",
    ),
    "Name or service not known": (
        "Der Name oder der Dienst ist nicht bekannt",
        "名前またはサービスが不明です",
        "未知的名称或服务",
    ),
    "Temporary failure in name resolution": (
        "Temporärer Fehler bei der Namensauflösung",
        "名前解決に一時的に失敗しました",
        "域名解析暂时失败",
    ),
    "Network is unreachable": (
        "Das Netzwerk ist nicht erreichbar",
        "ネットワークに届きません",
        "网络不可达",
    ),
    "No route to host": (
        "Keine Route zum Zielrechner",
        "ホストへの経路がありません",
        "没有到主机的路由",
    ),
    "Required key not available": (
        "Der notwendige Schlüssel ist nicht verfügbar",
        "要求されたキーが利用できません",
        "需要的关键字不存在",
    ),
    "Key was rejected by service": (
        "Der SChlüssel wurde von Dienst zurückgewiesen",
        "キーがサービスによって拒否されました",
        "键值被服务所拒绝",
    ),
    "file too short": (
        "Die Datei ist zu kurz",
        "ファイルが小さすぎます",
        "文件过短",
    ),
    "invalid ELF header": (
        "Ungültiger ELF-Header",
        "無効な ELF ヘッダーです",
        "无效的 ELF 头",
    ),
    "The following packages have unmet dependencies:": (
        "Die folgenden Pakete haben unerfüllte Abhängigkeiten:",
        "以下のパッケージには満たせない依存関係があります:",
        "下列软件包有未满足的依赖关系:",
    ),
    "The list of sources could not be read": (
        "Die Liste der Quellen konnte nicht gelesen werden",
        "ソースのリストを読むことができません",
        "无法读取源列表",
    ),
    "but it is not going to be installed": (
        "soll aber nicht installiert werden",
        "しかし、インストールされようとしていません",
        "但是它将不会被安装",
    ),
    "but it is not installable": (
        "ist aber nicht installierbar",
        "しかし、インストールすることができません",
        "但无法安装它",
    ),
    "The following signatures couldn't be verified because the public key is not available:": (
        "Die folgenden Signaturen konnten nicht überprüft werden, weil ihr öffentlicher Schlüssel nicht verfügbar ist:",
        "公開鍵を利用できないため、以下の署名は検証できませんでした:",
        "由于没有公钥，无法验证下列签名:",  # noqa: RUF001 - the comma is Chinese
    ),
    "dependency problems - leaving unconfigured": (
        "Abhängigkeitsprobleme - verbleibt unkonfiguriert",
        "依存関係の問題 - 設定を見送ります",
        "依赖关系问题 - 仍未被配置",
    ),
}

_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    r"Unable to locate package \1": (
        r"Paket (\S{1,100}) kann nicht gefunden werden",
        r"无法定位软件包 (\S{1,100})",
        r"パッケージ (\S{1,100}) が見つかりません",
    ),
    r"Package '\1' has no installation candidate": (
        r"Für Paket '(\S{1,100})' existiert kein Installationskandidat",
        r"软件包 (\S{1,100}) 没有可安装候选",
        r"パッケージ '(\S{1,100})' にはインストール候補がありません",
    ),
    r"Failed to fetch \1": (
        r"Fehlschlag beim Holen von (\S{1,300})",
        r"无法下载 (\S{1,300})",
        r"(\S{1,300}) の取得に失敗しました",
    ),
    r"Could not resolve '\1'": (
        r"'(\S{1,200})' konnte nicht aufgelöst werden",
        "无法解析域名[\"'](\\S{1,200})[\"']",
        r"'(\S{1,200})' を解決できませんでした",
    ),
    "command not found": ("Kommando nicht gefunden", "Befehl nicht gefunden", "未找到命令", "コマンドが見つかりません"),
}
"""A pattern has one longest fixed part, in which it is searched for first."""


def translate(text: str) -> str:
    """Put the messages in a text in English."""
    for phrase, english in _BY_PHRASE:
        if phrase in text:
            text = text.replace(phrase, english)
    for part, pattern, english in _BY_PART:
        if part in text:
            text = re.sub(pattern, english, text)
    return text


_BY_PHRASE = sorted(
    ((phrase, english) for english, phrases in _PHRASES.items() for phrase in phrases),
    key=lambda pair: (-len(pair[0]), pair[0]),
)
"""The longer ones first: some are the beginning of others."""
_BY_PART = [
    (max(re.split(r"\(.*?\)", pattern), key=len).strip("'[]\""), pattern, english)
    for english, patterns in _TEMPLATES.items()
    for pattern in patterns
]
