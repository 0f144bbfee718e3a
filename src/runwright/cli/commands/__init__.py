"""The subcommands of `runwright`. A module defines `<name>_command` for each name that `cli.main.COMMANDS` maps to it.

init.py           init                                  run.py            run, watch
signals.py        pause, resume, cancel, retry, skip, signal, confirm
approvals.py      approve, deny, send                   rerun.py          rerun, recover
plan.py           plan validate, show, hash, graph, import-dbt
inspect.py        list, show, events, alerts            logs.py           logs
artifacts.py      artifacts list, get, prune            results.py        results get, prune
append.py         append                                export_import.py  export, import
verify.py         verify, anchor, rebuild, doctor       noetl.py          noetl check
serve.py          serve                                 worker.py         worker
token.py          token create, list, revoke            key.py            key

Exit codes: 0 success, 1 problems found or run not completed, 2 refused or invalid, 3 store or server unavailable,
128 + N after signal N.
"""
