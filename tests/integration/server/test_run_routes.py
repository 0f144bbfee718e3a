"""Runs over HTTP: start, read, follow, signal."""

from __future__ import annotations

from typing import Any

from support.events import History
from support.server import HELLO, WAITING, run_path, running_server
from support.waiting import until


async def test_run_can_be_started_and_read_to_its_end(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        started = await me.start({"plan": "two", "steps": [{"id": "a", "shell": "echo one"}, {"id": "b", "noop": {}}]})
        assert started["created"] is True
        run = run_path(started["runId"])
        ended = await me.get(f"{run}?wait=30s")
        assert (ended["status"], ended["completedSteps"], ended["totalSteps"]) == ("COMPLETED", 2, 2)
        assert ended["asOf"] >= ended["completedAt"]
        status = await me.get(f"{run}/status")
        assert status["status"] == "COMPLETED"
        assert [row["runId"] for row in (await me.get("/v1/runs"))["runs"]] == [started["runId"]]
        logs = await me.get(f"{run}/logs/a")
        assert [line["text"] for line in logs["lines"]] == ["one"]
        result = await me.get(f"{run}/results/a")
        assert result["exitCode"] == 0
        events = await me.get(f"{run}/events")
        assert [event["runSeq"] for event in events["events"]] == list(range(1, events["lastEventSeq"] + 1))
        assert events["nextAfterSeq"] is None


async def test_events_are_paged(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run = run_path(await me.run())
        first = await me.get(f"{run}/events?limit=2")
        assert [event["runSeq"] for event in first["events"]] == [1, 2]
        rest = await me.get(f"{run}/events?afterSeq={first['nextAfterSeq']}")
        assert [event["runSeq"] for event in rest["events"]] == [3, 4, 5]


async def test_run_can_be_read_at_an_earlier_event(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run = run_path(await me.run())
        then = await me.get(f"{run}?atSeq=3")
        assert (then["status"], then["lastEventSeq"]) == ("RUNNING", 3)
        events = (await me.get(f"{run}/events"))["events"]
        assert then["asOf"] == events[2]["persistedAt"]
        assert (await me.get(f"{run}?atTime={events[2]['persistedAt']}"))["lastEventSeq"] >= 3
        problem = await me.get(f"{run}?atSeq=99", 400)
        assert problem["code"] == "INVALID_ARGUMENT"


async def test_unchanged_documents_are_not_sent_again(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run = run_path(await me.run())
        for path in (run, f"{run}?atSeq=3", f"{run}/plan", f"{run}/events?limit=2"):
            answer = await me.http.get(path)
            again = await me.http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), path
        held = run_path((await me.start(WAITING))["runId"])
        answer = await me.http.get(held)
        await me.signal(held.rpartition("/")[2], "PAUSE")
        changed = await me.http.get(held, headers={"if-none-match": answer.headers["etag"]})
        assert changed.status_code == 200


async def test_repeated_start_request_returns_the_same_run(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        body = {"plan": HELLO, "runRequestId": "order-1"}
        first = await me.post("/v1/runs", body, 201)
        again = await me.post("/v1/runs", body, 200)
        assert (again["runId"], again["created"]) == (first["runId"], False)
        key = await me.post("/v1/runs", {"plan": HELLO}, 200, headers={"idempotency-key": "order-1"})
        assert key["runId"] == first["runId"]
        other = await me.post("/v1/runs", {"plan": HELLO, "runRequestId": "order-2"}, 201)
        assert other["runId"] != first["runId"]
        elsewhere = await me.post("/v1/runs", {**body, "context": {"environmentId": "prod"}}, 201)
        assert elsewhere["runId"] != first["runId"]
        refused = await me.post("/v1/runs", {**body, "params": {"x": 1}}, 400)
        assert refused["code"] == "INVALID_ARGUMENT"


async def test_start_never_changes_an_existing_run(store: str) -> None:
    """A duplicate, a refused start and a start by another tenant do not change the run."""
    async with running_server(store) as server:
        await server.caller_with("Admin")
        mine = await server.caller_with("Engineer", tenant="acme")
        other = await server.caller_with("Engineer", tenant="other")
        context = {"runId": "taken"}
        before = await mine.start_waiting("taken")

        assert (await mine.start(WAITING, 200, context=context))["created"] is False
        assert (await mine.start(HELLO, 409, context=context))["code"] == "PLAN_MISMATCH"
        assert (await mine.start({"plan": "broken", "steps": []}, 422, context=context))[
            "code"
        ] == "INVALID_PLAN_SCHEMA"
        refused = await other.start(WAITING, 409, context=context)
        assert refused["code"] == "RUN_ALREADY_EXISTS"
        assert "acme" not in refused["detail"]
        named = await other.start(WAITING, 403, context={**context, "tenantId": "acme"})
        assert named["code"] == "AUTHZ_TENANT_FORBIDDEN"

        assert await mine.get(f"{run_path('taken')}/events") == before
        assert (await mine.get(f"{run_path('taken')}/status"))["status"] == "RUNNING"
        await mine.signal("taken", "CANCEL")


async def test_signals_are_decided_and_recorded(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = (await me.start(WAITING))["runId"]
        paused = await me.signal(run_id, "PAUSE", reason="a look")
        assert (paused["decision"], paused["audit"]["sourceIp"]) == ("ACCEPTED", "127.0.0.1")
        assert (await me.get(f"{run_path(run_id)}/status"))["status"] == "PAUSED"
        resumed = await me.signal(run_id, "RESUME")
        assert resumed["engineResult"]
        again = await me.post(
            f"{run_path(run_id)}/signals", {"signalId": paused["signalId"], "signalType": "PAUSE", "reason": "a look"}
        )
        assert again["signalDecisionId"] == paused["signalDecisionId"]
        other = await me.post(
            f"{run_path(run_id)}/signals", {"signalId": paused["signalId"], "signalType": "CANCEL"}, 409
        )
        assert other["code"] == "SIGNAL_DUPLICATE"
        await me.signal(run_id, "CANCEL")
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "CANCELLED"
        refused = await me.signal(run_id, "PAUSE", 409)
        assert (refused["code"], refused["decision"]["decision"]) == ("RUN_TERMINAL", "REJECTED")
        records = (await me.get(f"{run_path(run_id)}/decisions"))["decisions"]
        assert [each["decision"] for each in records] == ["ACCEPTED", "ACCEPTED", "ACCEPTED", "REJECTED"]
        assert records[0] == await me.get(f"{run_path(run_id)}/signals/{paused['signalId']}")
        assert (await me.get(f"{run_path(run_id)}/signals/{server.service.log.ids.event_id()}", 404))[
            "code"
        ] == "SIGNAL_NOT_FOUND"


async def test_posted_event_completes_a_waiting_step(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        plan = {"plan": "waits", "steps": [{"id": "w", "wait": {"event": "paid"}}]}
        run_id = (await me.start(plan))["runId"]
        sent = await me.post(f"{run_path(run_id)}/events/paid", {"payload": {"amount": 3}})
        assert sent["decision"] == "ACCEPTED"
        ended = await me.get(f"{run_path(run_id)}?wait=30s")
        assert ended["status"] == "COMPLETED"


async def test_approval_question_is_listed_and_answered(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        plan = {"plan": "asks", "steps": [{"id": "ok", "approval": {"prompt": "Go?"}}]}
        run_id = (await me.start(plan))["runId"]

        async def find_questions() -> list[Any]:
            return (await me.get(f"{run_path(run_id)}/questions"))["questions"]

        asked = await until(find_questions)
        assert (asked[0]["stepId"], asked[0]["prompt"]) == ("ok", "Go?")
        await me.signal(run_id, "APPROVE", payload={"stepId": "ok"})
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"


async def test_rerun_starts_a_new_run_from_a_step(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        plan = {"plan": "fails", "steps": [{"id": "a", "noop": {}}, {"id": "b", "shell": "exit 3"}]}
        old = await me.run(plan, context={"projectId": "p", "environmentId": "e"})
        made = await me.post(f"{run_path(old)}/rerun", {"fromStep": "b"}, 201)
        assert (made["projectId"], made["environmentId"]) == ("p", "e")
        new = await me.get(f"{run_path(made['runId'])}?wait=30s")
        assert (new["status"], new["originRunId"]) == ("FAILED", old)
        assert [step["status"] for step in new["steps"]] == ["SKIPPED", "FAILED"]
        assert (await me.post(f"{run_path(old)}/rerun", {"fromStep": "nosuch"}, 404))["code"] == "STEP_NOT_FOUND"


async def test_entities_are_the_plans_steps_and_a_loops_iterations(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        loop = {
            "plan": "loop",
            "steps": [
                {"id": "each", "foreach": {"in": [1, 2, 3]}, "noop": {}},
                {"id": "wait", "wait": "1h"},
                {"id": "never", "noop": {}},
            ],
        }
        run_id = (await me.start(loop))["runId"]
        async for event in me.stream(f"{run_path(run_id)}/stream"):
            if event["event"] == "StepStarted" and event["data"]["stepId"] == "wait":
                break
        found = (await me.get(f"{run_path(run_id)}/entities"))["entities"]
        assert [(each["path"], each["status"]) for each in found] == [
            ("each", "SUCCESS"),
            ("wait", "RUNNING"),
            ("never", "PENDING"),
        ]
        page = await me.get(f"{run_path(run_id)}/entities?stepId=each&limit=2")
        assert [each["path"] for each in page["entities"]] == ["each[0]", "each[1]"]
        rest = await me.get(f"{run_path(run_id)}/entities?stepId=each&limit=2&cursor={page['cursor']}")
        assert [(each["path"], each["status"]) for each in rest["entities"]] == [("each[2]", "SUCCESS")]
        assert rest["cursor"] is None
        await me.signal(run_id, "CANCEL")


async def test_run_ids_may_have_any_characters(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        for name in ("a/b", "ä ö", "50%", "..x", "?#&", "events", "a" * 512):
            started = await me.start(HELLO, context={"runId": name})
            assert started["runId"] == name
            assert (await me.get(f"{run_path(name)}?wait=30s"))["runId"] == name
            assert (await me.get(f"{run_path(name)}/logs/greet"))["lines"][0]["text"] == "hello"


async def test_large_values_are_readable_only_through_their_run(store: str) -> None:
    async with running_server(store) as server:
        await server.caller_with("Admin")
        me = await server.caller_with("Engineer", tenant="acme")
        big = {"plan": "big", "steps": [{"id": "a", "python": {"code": "result = 'x' * 100_000"}}]}
        run_id = await me.run(big)
        ended = next(
            e for e in (await me.get(f"{run_path(run_id)}/events"))["events"] if e["eventType"] == "StepCompleted"
        )
        digest = ended["payload"]["resultRef"]["sha256"]
        assert await me.get(f"{run_path(run_id)}/results/{digest}") == "x" * 100_000
        assert await me.get(f"{run_path(run_id)}/results/a") == "x" * 100_000
        other = await server.caller_with("Engineer", tenant="other")
        theirs = await other.run()
        assert (await other.get(f"{run_path(theirs)}/results/{digest}", 404))["code"] == "REFERENCE_NOT_AVAILABLE"


async def test_artifacts_are_listed_and_fetched(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        code = "import runwright as rw\nrw.current_step().keep(b'abc', 'note')"
        run_id = await me.run({"plan": "keeps", "steps": [{"id": "a", "python": {"code": code}}]})
        (found,) = (await me.get(f"{run_path(run_id)}/artifacts"))["artifacts"]
        assert (found["stepId"], found["artifact"]["kind"]) == ("a", "note")
        answer = await me.http.get(f"{run_path(run_id)}/artifacts/{found['artifact']['sha256']}")
        assert answer.content == b"abc"


async def test_yaml_plan_is_accepted_and_its_errors_have_lines(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = await me.run("plan: hello\nsteps:\n  - {id: greet, shell: echo hi}\n")
        assert "id: greet" in await me.get(f"{run_path(run_id)}/plan?format=yaml")
        problem = await me.start("plan: bad\nsteps:\n  - {id: a, shel: x}\n  - {id: a, noop: {}}\n", 422)
        assert [(each["code"], each["line"]) for each in problem["errors"]] == [
            ("INVALID_STEP_SCHEMA", 3),
            ("INVALID_PLAN_SCHEMA", 4),
        ]
        path = {"plan": "p", "steps": [{"id": "a", "plan": {"path": "/etc/passwd"}}]}
        assert (await me.start(path, 422))["code"] == "INVALID_PLAN_SCHEMA"


async def test_lists_are_filtered_and_paged(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        runs = [await me.run(context={"runId": f"r{number}"}) for number in range(5)]
        await me.start(WAITING, context={"runId": "held", "tenantId": "acme"})

        async def names(query: str) -> list[Any]:
            return [row["runId"] for row in (await me.get(f"/v1/runs?{query}"))["runs"]]

        first = await me.get("/v1/runs?limit=2&status=COMPLETED")
        assert [row["runId"] for row in first["runs"]] == [runs[4], runs[3]]
        assert await names(f"limit=9&status=COMPLETED&cursor={first['cursor']}") == [runs[2], runs[1], runs[0]]
        assert await names("planId=held") == ["held"]
        assert await names("tenantId=acme") == ["held"]
        assert await names("since=1h&limit=1") == ["held"]
        assert await names("since=2099-01-01T00:00:00Z") == []
        assert await names("idPrefix=he") == ["held"]
        assert await names("provider=embedded&workflowId=r1&providerRunId=r1") == ["r1"]
        assert (await me.get("/v1/runs?provider=embedded", 400))["code"] == "INVALID_ARGUMENT"
        assert (await me.get("/v1/runs?cursor=x", 400))["code"] == "INVALID_CURSOR"
        await me.signal("held", "CANCEL")


async def test_provider_ids_of_another_tenant_hide_no_run(file_store: str) -> None:
    reference = {"provider": "temporal", "namespace": "prod", "workflowId": "wf", "runId": "r7"}
    async with running_server(file_store) as server:
        for tenant in ("a", "b"):
            history = History(f"of-{tenant}", tenant_id=tenant)
            events = [history("RunQueued"), history("RunStarted", engineRunRef=reference)]
            await server.service.log.append(events)
        query = "/v1/runs?provider=temporal&workflowId=wf&providerRunId=r7"
        for tenant in ("a", "b"):
            caller = await server.caller_with("Viewer", tenant=tenant)
            assert [run["runId"] for run in (await caller.get(query))["runs"]] == [f"of-{tenant}"]
            assert (await caller.get(f"{query}&providerScope=staging"))["runs"] == []
        admin = await server.caller_with("Admin")
        assert (await admin.get(query, 400))["code"] == "INVALID_ARGUMENT"
        assert [run["runId"] for run in (await admin.get(f"{query}&tenantId=a"))["runs"]] == ["of-a"]
