"""The kinds of task of a playbook: what each makes of its fields, in their several spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.expressions import any_expression

from .fields import Fields
from .known import SUB_PLAN
from .problems import Findings, PlanInvalid

KINDS = (
    "http",
    "python",
    "postgres",
    "duckdb",
    "sqlite",
    "shell",
    "workbook",
    "playbook",
    "noop",
    "artifact",
    "nats",
    "secrets",
)
GONE = ("retry", "sink", "case", "eval", "expr", "script")
"""Fields of earlier models of the language."""
NOT_LOOKED_AT = ("verify_ssl", "follow_redirects")
COMMON = (
    "name",
    "label",
    "kind",
    "desc",
    "description",
    "spec",
    "set",
    "args",
    "input",
    "auth",
    "credential",
    "timeout",
    "assert",
)
OF_A_WHOLE = ("name", "label", "kind", "task", "desc", "description", "spec", "set", "args", "input", "timeout")
"""What may be said where a task of the workbook is used that is a run of its own."""
DIALECT = "noetl."
"""How the tools are called that only playbooks have."""


class Own(msgspec.Struct):
    """What a kind of task makes of its fields."""

    tool: str
    inputs: dict[str, Any]
    looked_at: Any = None  # what must not hold a secret, where that is not simply the inputs


class KindReader:
    def __init__(self, findings: Findings, link: Callable[[str], str] | None) -> None:
        self._findings = findings
        self._link = link
        self._readers: dict[str, Callable[[Fields, dict[str, Any]], Own | None]] = {
            "http": self._http,
            "python": self._python,
            "postgres": self._sql,
            "duckdb": self._sql,
            "sqlite": self._sql,
            "shell": self._shell,
            "noop": self._noop,
            "artifact": self._artifact,
            "nats": self._nats,
            "secrets": self._secrets,
            "playbook": self._playbook,
        }

    def read(self, kind: str, fields: Fields, args: dict[str, Any]) -> Own | None:
        """What it is given; None if that cannot be said."""
        return self._readers[kind](fields, args)

    def _http(self, fields: Fields, args: dict[str, Any]) -> Own:
        bodies, queries = ("json", "payload", "data", "body"), ("query", "params")
        own = ("url", "endpoint", "method", "headers", "max_bytes", *queries, *bodies)
        fields.refuse_unknown((*COMMON, *own, *NOT_LOOKED_AT), "A task of kind http", GONE)
        fields.not_looked_at(*NOT_LOOKED_AT)
        inputs: dict[str, Any] = {"url": _first(fields, "url", "endpoint")}
        inputs |= {name: fields.raw(name) for name in ("method", "headers") if name in fields}
        query = {**(fields.mapping("query") or {}), **(fields.mapping("params") or {})}
        if query:
            inputs["query"] = query
        if "max_bytes" in fields:
            inputs["maxBytes"] = fields.raw("max_bytes")
        sent = fields.one_of(*bodies)
        body = None if sent is None else fields.raw(sent)
        if body is None and args and str(inputs.get("method", "GET")).upper() not in ("GET", "HEAD"):
            body = args
        elif args:
            inputs["query"] = {**args, **query}
        is_text = isinstance(body, str) and not any_expression(body)
        if body is not None:
            inputs["content" if sent in ("data", "body") or is_text else "json"] = body
        if (auth := self._auth(fields)) is not None:
            inputs["bearer"] = auth
        return Own(f"{DIALECT}http", inputs)

    def _python(self, fields: Fields, args: dict[str, Any]) -> Own:
        fields.refuse_unknown((*COMMON, "code", "libs"), "A task of kind python", GONE)
        inputs: dict[str, Any] = {"code": fields.raw("code"), "args": args}
        if isinstance(libs := fields.raw("libs"), dict):
            inputs["libs"] = {name: _module(each) for name, each in cast("dict[str, Any]", libs).items()}
        elif libs is not None:
            sentence = "`libs` installs nothing here: what the code imports must be there already."
            self._findings.warning((*fields.path, "libs"), sentence)
        return Own(f"{DIALECT}python", inputs)

    def _sql(self, fields: Fields, args: dict[str, Any]) -> Own:
        kind = str(fields.raw("kind"))
        texts = ("query", "command", "sql", "statement", "queries", "commands")
        places = ("connection", "dsn", "url", "database", "path")
        fields.refuse_unknown((*COMMON, *texts, *places, "params", "max_rows", "pool"), f"A task of kind {kind}", GONE)
        fields.not_looked_at("pool")
        query = _first(fields, *texts)
        if isinstance(query, list):
            query = ";\n".join(str(part).rstrip().rstrip(";") for part in cast("list[Any]", query))
        if isinstance(query, str) and any_expression(query):
            sentence = "Values become part of the SQL text. Bind them instead: write :name, and name under `args`."
            self._findings.warning(fields.path, sentence)
        connection = self._place_or_auth(fields, *places)
        if isinstance(connection, str) and "://" not in connection and not any_expression(connection):
            connection = f"{kind}:///{connection}"
        if connection is None and kind == "duckdb":
            connection = "duckdb:///:memory:"
        bound = {**args, **(fields.mapping("params") or {})}
        inputs: dict[str, Any] = {"engine": kind, "query": query, "args": bound}
        if connection is not None:
            inputs["connection"] = connection
        if "max_rows" in fields:
            inputs["maxRows"] = fields.raw("max_rows")
        return Own(f"{DIALECT}sql", inputs)

    def _auth(self, fields: Fields) -> Any:
        """Credentials are named, never written: the name of a secret."""
        auth = _first(fields, "auth", "credential")
        if isinstance(auth, dict):
            given = cast("dict[str, Any]", auth)
            auth = given.get("credential") or given.get("secret") or given.get("key") or given.get("name")
        if auth is None:
            return None
        if not isinstance(auth, str):
            fields.wrong("auth" if "auth" in fields else "credential", "This names a credential: a text.")
            return None
        return {"secret": auth}

    def _place_or_auth(self, fields: Fields, *places: str) -> Any:
        """Where a server or a database is: said outright, or by the secret that has its address."""
        auth, place = self._auth(fields), fields.one_of(*places)
        if place is None:
            return auth
        if auth is not None:
            sentence = f"Its `auth` is not looked at: `{place}` says where it is. A secret has the whole address."
            self._findings.warning((*fields.path, place), sentence)
        return fields.raw(place)

    def _shell(self, fields: Fields, args: dict[str, Any]) -> Own:
        texts = ("command", "cmd", "cmds", "commands", "script")
        fields.refuse_unknown((*COMMON, *texts, "env", "cwd", "working_dir", "shell"), "A task of kind shell", GONE)
        command = _first(fields, *texts)
        if isinstance(command, list):
            command = "\n".join(map(str, cast("list[Any]", command)))
            command = f"set -e\n{command}"
        inputs: dict[str, Any] = {"command": command}
        env = {**args, **(fields.mapping("env") or {})}
        if env:
            inputs["env"] = env
        if (folder := _first(fields, "cwd", "working_dir")) is not None:
            inputs["cwd"] = folder
        if "shell" in fields:
            inputs["shell"] = fields.raw("shell")
        return Own("shell", inputs)

    def _noop(self, fields: Fields, args: dict[str, Any]) -> Own:
        fields.refuse_unknown((*COMMON, "result"), "A task of kind noop", GONE)
        result = fields.raw("result") if "result" in fields else (args or None)
        return Own("noop", {} if result is None else {"result": result})

    def _artifact(self, fields: Fields, args: dict[str, Any]) -> Own:
        fields.refuse_unknown(
            (*COMMON, "action", "path", "source", "data", "type", "ref", "uri", "to"), "A task of kind artifact", GONE
        )
        action = fields.text("action") or "get"
        if action not in ("get", "put"):
            fields.wrong("action", "`action` is get or put.")
        inputs: dict[str, Any] = {"action": action}
        for ours, names in (("path", ("path", "source", "to")), ("ref", ("ref", "uri"))):
            if (given := _first(fields, *names)) is not None:
                inputs[ours] = given
        inputs |= {name: fields.raw(name) for name in ("data", "type") if name in fields}
        if "result_ref" in args:
            inputs.setdefault("ref", args["result_ref"])
        return Own(f"{DIALECT}artifact", inputs)

    def _nats(self, fields: Fields, args: dict[str, Any]) -> Own:
        own = ("operation", "url", "bucket", "key", "value", "data", "payload", "subject", "wait")
        fields.refuse_unknown((*COMMON, *own), "A task of kind nats", GONE)
        inputs = {name: fields.raw(name) for name in own if name in fields and name not in ("data", "payload")}
        value = _first(fields, "value", "data", "payload")
        if value is not None or args:
            inputs["value"] = args if value is None else value
        if (url := self._place_or_auth(fields, "url")) is not None:
            inputs["url"] = url
        return Own(f"{DIALECT}nats", inputs)

    def _secrets(self, fields: Fields, args: dict[str, Any]) -> Own:
        fields.refuse_unknown((*COMMON, "names", "map", "provider", "scope"), "A task of kind secrets", GONE)
        if "provider" in fields:
            sentence = "`provider` is not looked at: where secrets come from is said in runwright.toml."
            self._findings.warning((*fields.path, "provider"), sentence)
        names = {name: name for name in fields.texts("names")} | (fields.mapping("map") or {}) | args
        inputs = {"names": names, "values": {key: {"secret": name} for key, name in names.items()}}
        return Own(f"{DIALECT}secrets", inputs, list(names.values()))  # `token: token` names one, and is none

    def _playbook(self, fields: Fields, args: dict[str, Any]) -> Own | None:
        own = ("path", "ref", "payload", "workload", "return_step", "inherit")
        fields.refuse_unknown((*COMMON, *own), "A task of kind playbook", GONE)
        if "return_step" in fields:
            sentence = "`return_step` is not looked at: what the playbook's final or last step gives is the result."
            self._findings.warning((*fields.path, "return_step"), sentence)
        given = {**(fields.mapping("workload") or {}), **(fields.mapping("payload") or {}), **args}
        ref, path = fields.text("ref"), fields.text("path")
        if path is not None and any_expression(path):
            fields.wrong("path", "Which playbook it is must be known from the start: a path has no expressions.")
            return None
        if ref is None and path is not None and self._link is not None:
            try:
                ref = self._link(path)
            except PlanInvalid as invalid:
                more = len(invalid.problems) - 1
                rest = f", and {more} more" if more else ""
                fields.wrong("path", f"That playbook cannot be used: {invalid.problems[0]}{rest}")
                return None
            except RunwrightError as error:
                self._findings.error((*fields.path, "path"), ErrorCode(error.code), error.detail)
                return None
        where = {"ref": ref} if ref is not None else {} if path is None else {"path": path}
        inherit = {"inherit": True} if fields.flag("inherit", False) else {}
        return Own(SUB_PLAN, {**where, "params": given, **inherit})


def _first(fields: Fields, *names: str) -> Any:
    """What is given under one of several names."""
    given = fields.one_of(*names)
    return None if given is None else fields.raw(given)


def _module(given: Any) -> Any:
    """`name`, or `{from: module, import: name}` for what a module has."""
    parts = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return f"{parts['from']}:{parts['import']}" if parts.keys() == {"from", "import"} else cast("Any", given)
