"""The tasks of a playbook: tools in their several spellings, as inputs of ours."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import Step
from runwright.contract.playbook import HTTP, HTTP_IDLE, Do, Keeping, Rule, Task
from runwright.core.expressions import any_expression
from runwright.core.playscope import NO_NAMES

from .fields import Fields
from .inputs import misfits
from .kinds import Kinds
from .known import SUB_PLAN
from .parts import make_part
from .playbook_keeping import read_keeping
from .playbook_rules import Settings, check_texts, read_rules, read_settings
from .playbook_workbook import Workbook
from .problems import STEP, Findings, Path, PlanInvalid, did_you_mean
from .secrets import find_secrets
from .steps import check_name, read_dispatch

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


FAILED = "{{ outcome.status == 'error' }}"


class _Own(msgspec.Struct):
    """What a kind of task makes of its fields."""

    tool: str
    inputs: dict[str, Any]
    looked_at: Any = None  # what must not hold a secret, where that is not simply the inputs


def read_args(fields: Fields) -> dict[str, Any]:
    return {**(fields.mapping("args") or {}), **(fields.mapping("input") or {})}


class Outer(msgspec.Struct, frozen=True):
    """What the step or the playbook around them says for tasks that do not say it themselves."""

    dispatch: dict[str, str] | None = None
    timeout: float | None = None
    args: dict[str, Any] = {}


class TaskReader:
    def __init__(self, kinds: Kinds, findings: Findings, link: Callable[[str], str] | None, workbook: Workbook) -> None:
        self._kinds = kinds
        self._findings = findings
        self._link = link
        self._workbook = workbook
        self._outer = Outer()
        self._readers: dict[str, Callable[[Fields, dict[str, Any]], _Own | None]] = {
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

    def pipeline(self, tool: Any, path: Path, step: str, outer: Outer) -> tuple[Task, ...]:
        """One tool, or a list: each with `name`, or under its label."""
        before, self._outer = self._outer, outer
        try:
            return self._pipeline(tool, path, step)
        finally:
            self._outer = before

    def _pipeline(self, tool: Any, path: Path, step: str) -> tuple[Task, ...]:
        given: list[tuple[str | None, Any, Path]] = []
        if isinstance(tool, dict):
            given.append((None, cast("dict[str, Any]", tool), path))
        elif isinstance(tool, list) and tool:
            given += [self._labelled(item, (*path, at)) for at, item in enumerate(cast("list[Any]", tool))]
        else:
            self._findings.error(path, STEP, "`tool` is a mapping with a `kind`, or a list of such.")
        labels = [self._label(label, data, step, at, len(given)) for at, (label, data, _) in enumerate(given, 1)]
        tasks: list[Task] = []
        for label, (_, data, where) in zip(labels, given, strict=True):
            if labels.count(label) > 1:
                self._findings.error(where, STEP, f"Two tasks of this pipeline are called {label!r}.")
            task = self._task(label, data, where, labels)
            if task is not None:
                tasks.append(task)
        return tuple(tasks)

    def _labelled(self, item: Any, path: Path) -> tuple[str | None, Any, Path]:
        """`{kind: ..., ...}`, or `label: {kind: ..., ...}`."""
        if isinstance(item, dict):
            given = cast("dict[str, Any]", item)
            if "kind" not in given and len(given) == 1:
                label, data = next(iter(given.items()))
                return label, data, (*path, label)
        return None, cast("Any", item), path

    def _label(self, label: str | None, data: Any, step: str, at: int, count: int) -> str:
        named = cast("dict[str, Any]", data).get("name") if isinstance(data, dict) else None
        if isinstance(data, dict) and cast("dict[str, Any]", data).get("kind") == "workbook":
            named = None  # there it is the task of the workbook that is named
        own = cast("dict[str, Any]", data).get("label") if isinstance(data, dict) else None
        found = label or own or named
        return found if isinstance(found, str) and found else (step if count == 1 else f"task_{at}")

    def _task(self, label: str, data: Any, path: Path, labels: Collection[str]) -> Task | None:
        if not isinstance(data, dict):
            self._findings.error(path, STEP, "A task is a mapping with a `kind`.")
            return None
        fields = Fields(cast("dict[str, Any]", data), path, STEP, self._findings)
        check_name(fields, "name" if "name" in fields else None, label, "label")
        if label in NO_NAMES:
            fields.wrong(None, f"{label!r} means something else in expressions. Call the task otherwise.")
        for name in GONE:
            if name in fields:
                why = "a task's policy says what its outcome means"
                if name == "script":
                    why = "what a task runs is written in it, as `code`, `query` or `command`"
                fields.wrong(name, f"`{name}` is gone: {why}.", on_key=True)
        kind = fields.text("kind")
        if kind not in KINDS:
            fields.wrong("kind" if kind else None, _no_kind(kind))
            return None
        return self._known(label, kind, fields, labels)

    def _known(self, label: str, kind: str, fields: Fields, labels: Collection[str]) -> Task | None:
        if kind == "workbook":
            return self._of_workbook(label, fields, labels)
        args = self._args(fields)
        own = self._readers[kind](fields, args)
        return None if own is None else self._made(label, own, fields, labels)

    def _made(self, label: str, own: _Own, fields: Fields, labels: Collection[str]) -> Task:
        check_texts(own.inputs, fields.path, self._findings)
        for place, sentence in find_secrets(own.inputs if own.looked_at is None else own.looked_at, ()):
            self._findings.error((*fields.path, *place), STEP, sentence)
        spec = fields.part("spec")
        rules, timeout, keeping = self._spec(spec, labels)
        dispatch = self._place(spec)
        timeout = timeout or fields.timeout() or (self._outer.timeout if own.tool != SUB_PLAN else None)
        if own.tool == HTTP and timeout is not None and timeout > HTTP_IDLE:
            own.inputs["idleTimeout"] = timeout  # who allows it that long waits that long for an answer
        self._warn_of(fields, ("assert",))
        rules = _with_settings(rules, read_settings(fields, "set", self._findings))
        self._check(own, fields, timeout)
        return make_part(
            Task,
            label=label,
            kind=own.tool,
            inputs=own.inputs,
            timeout=timeout,
            rules=rules,
            result=keeping,
            dispatch=dispatch,
        )

    def _place(self, spec: Fields | None) -> dict[str, str] | None:
        return (None if spec is None else read_dispatch(spec)) or self._outer.dispatch

    def _of_workbook(self, label: str, fields: Fields, labels: Collection[str]) -> Task | None:
        """A task that is written elsewhere: what is said here comes on top."""
        name = fields.text("task") or fields.text("name")
        if not name or name not in self._workbook.tools:
            advice = "" if not name else did_you_mean(name, self._workbook.tools)
            fields.wrong("name" if name else None, f"The workbook has no task {name!r}.{advice}")
            return None
        if name in self._workbook.wholes:
            fields.refuse_unknown(OF_A_WHOLE, f"A task that is the workbook's {name!r}")
            inputs = self._workbook.as_playbook(name, self._args(fields), self._place(fields.part("spec")))
            return None if inputs is None else self._made(label, _Own(SUB_PLAN, inputs), fields, labels)
        fields.refuse_unknown((*COMMON, "task"), "A task of kind workbook", GONE)
        there, path = self._workbook.tools[name]
        if there.get("kind") in ("workbook", None):
            self._findings.error(path, STEP, "A task of the workbook has a kind of its own.")
            return None
        here = {key: fields.raw(key) for key in ("set", "auth", "credential") if key in fields}
        parts = [
            there.get("spec"),
            {"timeout": fields.raw("timeout")} if "timeout" in fields else None,
            fields.raw("spec"),
        ]
        here["spec"] = _laid_over([part for part in parts if part is not None])
        own = Fields(there, path, STEP, self._findings)
        merged: dict[str, Any] = {**there, **here, "args": {**read_args(own), **read_args(fields)}}
        merged.pop("input", None)
        merged.pop("name", None)
        inner = Fields(merged, path, STEP, self._findings)
        if there["kind"] not in KINDS:
            inner.wrong("kind", _no_kind(str(there["kind"])))
            return None
        return self._known(label, str(there["kind"]), inner, labels)

    def _args(self, fields: Fields) -> dict[str, Any]:
        return {**self._outer.args, **read_args(fields)}

    def _spec(
        self, spec: Fields | None, labels: Collection[str]
    ) -> tuple[tuple[Rule, ...] | None, float | None, Keeping]:
        if spec is None:
            return None, None, Keeping()
        spec.refuse_unknown(("timeout", "policy", "result", "dispatch"), "The spec of a task")
        rules = None
        if "policy" in spec:
            rules = read_rules(spec.raw("policy"), (*spec.path, "policy"), labels, self._findings)
        return rules, self._timeout(spec), read_keeping(spec.part("result"), labels, self._findings)

    def _timeout(self, spec: Fields) -> float | None:
        """How long, or a mapping with `connect`, `read` and the like: all of these together."""
        given = spec.raw("timeout")
        if not isinstance(given, dict):
            return spec.timeout()
        parts = Fields(cast("dict[str, Any]", given), (*spec.path, "timeout"), STEP, self._findings)
        times = {name: parts.duration(name, 1.0) for name in cast("dict[str, Any]", given)}
        for name, seconds in times.items():
            if seconds <= 0:
                parts.wrong(name, f"`{name}` must be longer than 0.")
        return sum(times.values()) or None

    def _check(self, own: _Own, fields: Fields, timeout: float | None) -> None:
        """Hold the inputs against what the tool takes."""
        tool = self._kinds.get(own.tool)
        if tool is None:
            fields.wrong("kind", f"This installation has no tool for {fields.raw('kind')!r}.")
            return
        given = {name: value for name, value in own.inputs.items() if value is not None}
        wrong = misfits(str(fields.raw("kind")), tool, given)
        for place, sentence, _ in wrong:
            fields.wrong(str(place[0]) if place and str(place[0]) in fields else None, sentence)
        step = Step(step_id="task", kind=own.tool, inputs=given, timeout=timeout)
        if not wrong and (trouble := tool.check(given, step)) is not None:
            fields.wrong(None, trouble)

    # One reader a kind

    def _http(self, fields: Fields, args: dict[str, Any]) -> _Own:
        bodies, queries = ("json", "payload", "data", "body"), ("query", "params")
        own = ("url", "endpoint", "method", "headers", "max_bytes", *queries, *bodies)
        fields.refuse_unknown((*COMMON, *own, *NOT_LOOKED_AT), "A task of kind http", GONE)
        self._warn_of(fields, NOT_LOOKED_AT)
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
        return _Own(f"{DIALECT}http", inputs)

    def _python(self, fields: Fields, args: dict[str, Any]) -> _Own:
        fields.refuse_unknown((*COMMON, "code", "libs"), "A task of kind python", GONE)
        inputs: dict[str, Any] = {"code": fields.raw("code"), "args": args}
        if isinstance(libs := fields.raw("libs"), dict):
            inputs["libs"] = {name: _module(each) for name, each in cast("dict[str, Any]", libs).items()}
        elif libs is not None:
            sentence = "`libs` installs nothing here: what the code imports must be there already."
            self._findings.warning((*fields.path, "libs"), sentence)
        return _Own(f"{DIALECT}python", inputs)

    def _sql(self, fields: Fields, args: dict[str, Any]) -> _Own:
        kind = str(fields.raw("kind"))
        texts = ("query", "command", "sql", "statement", "queries", "commands")
        places = ("connection", "dsn", "url", "database", "path")
        fields.refuse_unknown((*COMMON, *texts, *places, "params", "max_rows", "pool"), f"A task of kind {kind}", GONE)
        self._warn_of(fields, ("pool",))
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
        return _Own(f"{DIALECT}sql", inputs)

    def _warn_of(self, fields: Fields, names: tuple[str, ...]) -> None:
        for name in names:
            if name in fields:
                self._findings.warning((*fields.path, name), f"`{name}` is not looked at.")

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

    def _shell(self, fields: Fields, args: dict[str, Any]) -> _Own:
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
        return _Own("shell", inputs)

    def _noop(self, fields: Fields, args: dict[str, Any]) -> _Own:
        fields.refuse_unknown((*COMMON, "result"), "A task of kind noop", GONE)
        result = fields.raw("result") if "result" in fields else (args or None)
        return _Own("noop", {} if result is None else {"result": result})

    def _artifact(self, fields: Fields, args: dict[str, Any]) -> _Own:
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
        return _Own(f"{DIALECT}artifact", inputs)

    def _nats(self, fields: Fields, args: dict[str, Any]) -> _Own:
        own = ("operation", "url", "bucket", "key", "value", "data", "payload", "subject", "wait")
        fields.refuse_unknown((*COMMON, *own), "A task of kind nats", GONE)
        inputs = {name: fields.raw(name) for name in own if name in fields and name not in ("data", "payload")}
        value = _first(fields, "value", "data", "payload")
        if value is not None or args:
            inputs["value"] = args if value is None else value
        if (url := self._place_or_auth(fields, "url")) is not None:
            inputs["url"] = url
        return _Own(f"{DIALECT}nats", inputs)

    def _secrets(self, fields: Fields, args: dict[str, Any]) -> _Own:
        fields.refuse_unknown((*COMMON, "names", "map", "provider", "scope"), "A task of kind secrets", GONE)
        if "provider" in fields:
            sentence = "`provider` is not looked at: where secrets come from is said in runwright.toml."
            self._findings.warning((*fields.path, "provider"), sentence)
        names = {name: name for name in fields.texts("names")} | (fields.mapping("map") or {}) | args
        inputs = {"names": names, "values": {key: {"secret": name} for key, name in names.items()}}
        return _Own(f"{DIALECT}secrets", inputs, list(names.values()))  # `token: token` names one, and is none

    def _playbook(self, fields: Fields, args: dict[str, Any]) -> _Own | None:
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
        return _Own(SUB_PLAN, {**where, "params": given, **inherit})


def _first(fields: Fields, *names: str) -> Any:
    """What is given under one of several names."""
    given = fields.one_of(*names)
    return None if given is None else fields.raw(given)


def _no_kind(kind: str | None) -> str:
    known = f"There is no kind {kind!r}.{did_you_mean(kind, KINDS)}" if kind else "A task has a `kind`:"
    return f"{known} It is one of {', '.join(KINDS)}."


def _laid_over(parts: list[Any]) -> Any:
    """What is said nearer wins, and the rest holds. What is no mapping is left for others to refuse."""
    if not all(isinstance(part, dict) for part in parts):
        return next(part for part in parts if not isinstance(part, dict))
    return {name: value for part in parts for name, value in part.items()}


def _with_settings(rules: tuple[Rule, ...] | None, settings: Settings) -> tuple[Rule, ...] | None:
    """What a task sets whenever the pipeline goes on after it."""
    if not settings:
        return rules
    ctx, own = settings.ctx, {**settings.plain, **settings.iter}
    if rules is None:
        return (Rule(when=FAILED, do=Do.FAIL), Rule(do=Do.CONTINUE, set_ctx=ctx, set_iter=own))
    merged = tuple(
        rule
        if rule.do in (Do.RETRY, Do.FAIL)
        else msgspec.structs.replace(rule, set_ctx={**ctx, **rule.set_ctx}, set_iter={**own, **rule.set_iter})
        for rule in rules
    )
    if any(rule.when is None for rule in rules):
        return merged
    return (*merged, Rule(do=Do.CONTINUE, set_ctx=ctx, set_iter=own))


def _module(given: Any) -> Any:
    """`name`, or `{from: module, import: name}` for what a module has."""
    parts = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return f"{parts['from']}:{parts['import']}" if parts.keys() == {"from", "import"} else cast("Any", given)
