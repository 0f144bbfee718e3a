"""Kinds of task: convert the fields of a task, in all their spellings, to the inputs of a tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.expressions.template import contains_expression
from runwright.plans.field_reader import FieldReader
from runwright.plans.problems import PlanInvalid, ProblemCollector, sub_plan_problem
from runwright.plans.registry import SUB_PLAN

TASK_KINDS = (
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
REMOVED_FIELDS = ("retry", "sink", "case", "eval", "expr", "script")
"""Fields of earlier versions of the language."""
IGNORED_FIELDS = ("verify_ssl", "follow_redirects")
COMMON_FIELDS = (
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
SUB_PLAYBOOK_FIELDS = (
    "name",
    "label",
    "kind",
    "task",
    "desc",
    "description",
    "spec",
    "set",
    "args",
    "input",
    "timeout",
)
"""Fields of a task that runs a workbook task as a child run."""
PLAYBOOK_TOOL_PREFIX = "noetl."
"""Prefix of the kinds of tools that only playbooks use."""


class ToolInputs(msgspec.Struct):
    """The tool of a task and its inputs."""

    tool: str
    inputs: dict[str, Any]
    secret_check: Any = None  # checked for secret values instead of the inputs


class TaskKindReader:
    def __init__(self, problems: ProblemCollector, link: Callable[[str], str] | None) -> None:
        self._problems = problems
        self._link = link
        self._readers: dict[str, Callable[[FieldReader, dict[str, Any]], ToolInputs | None]] = {
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

    def read(self, kind: str, fields: FieldReader, args: dict[str, Any]) -> ToolInputs | None:
        """Return the inputs of a task of this kind; None if they are invalid."""
        return self._readers[kind](fields, args)

    def _http(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        body_fields, query_fields = ("json", "payload", "data", "body"), ("query", "params")
        known = ("url", "endpoint", "method", "headers", "max_bytes", *query_fields, *body_fields)
        _reject_unknown(fields, *known, *IGNORED_FIELDS)
        fields.warn_ignored(*IGNORED_FIELDS)
        inputs: dict[str, Any] = {"url": _first(fields, "url", "endpoint")}
        inputs |= {name: fields.raw(name) for name in ("method", "headers") if name in fields}
        query = {**(fields.mapping("query") or {}), **(fields.mapping("params") or {})}
        if query:
            inputs["query"] = query
        if "max_bytes" in fields:
            inputs["maxBytes"] = fields.raw("max_bytes")
        body_field = fields.find_alias(*body_fields)
        body = None if body_field is None else fields.raw(body_field)
        if body is None and args and str(inputs.get("method", "GET")).upper() not in ("GET", "HEAD"):
            body = args
        elif args:
            inputs["query"] = {**args, **query}
        is_text = isinstance(body, str) and not contains_expression(body)
        if body is not None:
            inputs["content" if body_field in ("data", "body") or is_text else "json"] = body
        if (auth := self._auth(fields)) is not None:
            inputs["bearer"] = auth
        return ToolInputs(f"{PLAYBOOK_TOOL_PREFIX}http", inputs)

    def _python(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        _reject_unknown(fields, "code", "libs")
        inputs: dict[str, Any] = {"code": fields.raw("code"), "args": args}
        if isinstance(libs := fields.raw("libs"), dict):
            inputs["libs"] = {name: _module(each) for name, each in cast("dict[str, Any]", libs).items()}
        elif libs is not None:
            sentence = "`libs` does not install packages: the modules that the code imports must be installed already."
            self._problems.warning((*fields.path, "libs"), sentence)
        return ToolInputs(f"{PLAYBOOK_TOOL_PREFIX}python", inputs)

    def _sql(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        kind = str(fields.raw("kind"))
        query_fields = ("query", "command", "sql", "statement", "queries", "commands")
        address_fields = ("connection", "dsn", "url", "database", "path")
        _reject_unknown(fields, *query_fields, *address_fields, "params", "max_rows", "pool")
        fields.warn_ignored("pool")
        query = _first(fields, *query_fields)
        if isinstance(query, list):
            query = ";\n".join(str(part).rstrip().rstrip(";") for part in cast("list[Any]", query))
        if isinstance(query, str) and contains_expression(query):
            sentence = (
                "Expressions become part of the SQL text. Bind values instead: write :name, and name under `args`."
            )
            self._problems.warning(fields.path, sentence)
        connection = self._address(fields, *address_fields)
        if isinstance(connection, str) and "://" not in connection and not contains_expression(connection):
            connection = f"{kind}:///{connection}"
        if connection is None and kind == "duckdb":
            connection = "duckdb:///:memory:"
        bound = {**args, **(fields.mapping("params") or {})}
        inputs: dict[str, Any] = {"engine": kind, "query": query, "args": bound}
        if connection is not None:
            inputs["connection"] = connection
        if "max_rows" in fields:
            inputs["maxRows"] = fields.raw("max_rows")
        return ToolInputs(f"{PLAYBOOK_TOOL_PREFIX}sql", inputs)

    def _auth(self, fields: FieldReader) -> Any:
        """Return the secret reference of a credential: credentials are named, never written."""
        auth = _first(fields, "auth", "credential")
        if isinstance(auth, dict):
            data = cast("dict[str, Any]", auth)
            auth = data.get("credential") or data.get("secret") or data.get("key") or data.get("name")
        if auth is None:
            return None
        if not isinstance(auth, str):
            fields.error("auth" if "auth" in fields else "credential", "The name of a credential must be a string.")
            return None
        return {"secret": auth}

    def _address(self, fields: FieldReader, *names: str) -> Any:
        """Return the address of a server or database: given directly, or a reference to the secret that holds it."""
        auth, name = self._auth(fields), fields.find_alias(*names)
        if name is None:
            return auth
        if auth is not None:
            sentence = f"`auth` is ignored because `{name}` gives the address. A secret must hold the whole address."
            self._problems.warning((*fields.path, name), sentence)
        return fields.raw(name)

    def _shell(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        command_fields = ("command", "cmd", "cmds", "commands", "script")
        _reject_unknown(fields, *command_fields, "env", "cwd", "working_dir", "shell", "unquoted")
        command = _first(fields, *command_fields)
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
        if "unquoted" in fields:
            inputs["unquoted"] = fields.raw("unquoted")
        return ToolInputs("shell", inputs)

    def _noop(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        _reject_unknown(fields, "result")
        result = fields.raw("result") if "result" in fields else (args or None)
        return ToolInputs("noop", {} if result is None else {"result": result})

    def _artifact(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        _reject_unknown(fields, "action", "path", "source", "data", "type", "ref", "uri", "to")
        action = fields.text("action") or "get"
        if action not in ("get", "put"):
            fields.error("action", "`action` must be get or put.")
        inputs: dict[str, Any] = {"action": action}
        for input_name, names in (("path", ("path", "source", "to")), ("ref", ("ref", "uri"))):
            if (value := _first(fields, *names)) is not None:
                inputs[input_name] = value
        inputs |= {name: fields.raw(name) for name in ("data", "type") if name in fields}
        if "result_ref" in args:
            inputs.setdefault("ref", args["result_ref"])
        return ToolInputs(f"{PLAYBOOK_TOOL_PREFIX}artifact", inputs)

    def _nats(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        known = ("operation", "url", "bucket", "key", "value", "data", "payload", "subject", "wait")
        _reject_unknown(fields, *known)
        inputs = {name: fields.raw(name) for name in known if name in fields and name not in ("data", "payload")}
        value = _first(fields, "value", "data", "payload")
        if value is not None or args:
            inputs["value"] = args if value is None else value
        if (url := self._address(fields, "url")) is not None:
            inputs["url"] = url
        return ToolInputs(f"{PLAYBOOK_TOOL_PREFIX}nats", inputs)

    def _secrets(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs:
        _reject_unknown(fields, "names", "map", "provider", "scope")
        if "provider" in fields:
            sentence = "`provider` is ignored: the secrets provider is set in runwright.toml."
            self._problems.warning((*fields.path, "provider"), sentence)
        names = {name: name for name in fields.texts("names")} | (fields.mapping("map") or {}) | args
        inputs = {"names": names, "values": {key: {"secret": name} for key, name in names.items()}}
        return ToolInputs(
            f"{PLAYBOOK_TOOL_PREFIX}secrets", inputs, list(names.values())
        )  # `token: token` is a name, not a secret value

    def _playbook(self, fields: FieldReader, args: dict[str, Any]) -> ToolInputs | None:
        known = ("path", "ref", "payload", "workload", "return_step", "inherit")
        _reject_unknown(fields, *known)
        if "return_step" in fields:
            sentence = "`return_step` is ignored: the result is that of the playbook's final or last step."
            self._problems.warning((*fields.path, "return_step"), sentence)
        params = {**(fields.mapping("workload") or {}), **(fields.mapping("payload") or {}), **args}
        ref, path = fields.text("ref"), fields.text("path")
        if path is not None and contains_expression(path):
            sentence = "`path` must not contain expressions: the playbook must be known before the run starts."
            fields.error("path", sentence)
            return None
        if ref is None and path is not None and self._link is not None:
            try:
                ref = self._link(path)
            except PlanInvalid as invalid:
                fields.error("path", sub_plan_problem("playbook", invalid))
                return None
            except RunwrightError as error:
                self._problems.error((*fields.path, "path"), ErrorCode(error.code), error.detail)
                return None
        target = {"ref": ref} if ref is not None else {} if path is None else {"path": path}
        inherit = {"inherit": True} if fields.flag("inherit", False) else {}
        return ToolInputs(SUB_PLAN, {**target, "params": params, **inherit})


def _reject_unknown(fields: FieldReader, *known: str) -> None:
    fields.reject_unknown((*COMMON_FIELDS, *known), f"a task of kind {fields.raw('kind')}", REMOVED_FIELDS)


def _first(fields: FieldReader, *names: str) -> Any:
    """Return the value of the field that is given under one of several names."""
    name = fields.find_alias(*names)
    return None if name is None else fields.raw(name)


def _module(value: Any) -> Any:
    """Convert `{from: module, import: name}` to `module:name`; leave a plain module name as it is."""
    parts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return f"{parts['from']}:{parts['import']}" if parts.keys() == {"from", "import"} else cast("Any", value)
