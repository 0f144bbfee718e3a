"""Playbooks over HTTP: started like any plan, and their events in NoETL's words."""

from __future__ import annotations

from urllib.parse import quote

from playbook_kit import code, noop, playbook, to
from runwright.contract.noetl_check import NoetlChecker
from server_kit import at, office


async def test_a_playbook_is_started_and_read_in_both_words(file_store: str) -> None:
    async with office(file_store) as there:
        me = there.caller()
        loop = {"in": "{{ xs }}", "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}}
        document = playbook(
            {"step": "a", "loop": loop, "tool": noop("{{ iter.x }}"), "next": to("b")},
            {"step": "b", "tool": noop()},
            workload={"xs": [1]},
        )
        run_id = await me.run(document, params={"xs": [1, 2, 3]})
        ended = await me.get(at(run_id))
        assert (ended["status"], [step["stepId"] for step in ended["steps"]]) == ("COMPLETED", ["a", "b"])
        words = await me.get(f"{at(run_id)}/events?format=noetl")
        assert NoetlChecker().check(words["events"]) == []
        ours = await me.get(f"{at(run_id)}/events")
        assert [event["seq"] for event in words["events"]] == [event["runSeq"] for event in ours["events"]]
        one = await me.get(f"{at(run_id)}/events?format=noetl&eventType=NextEvaluated&stepId=a")
        assert one["events"][0]["event_type"] == "next.evaluated"
        assert one["events"][0]["payload"]["selected"] == [{"step": "b"}]


async def test_a_large_result_is_had_by_its_address_and_by_its_hash(file_store: str) -> None:
    async with office(file_store) as there:
        me = there.caller()
        large = {**code("result = ['x' * 100] * 1000"), "spec": {"result": {"preview_max_bytes": 10}}}
        run_id = await me.run(playbook({"step": "a", "tool": [{"big": large}]}))
        events = await me.get(
            f"{at(run_id)}/events?format=noetl&eventType=ResultStored&stepId={quote('a/big', safe='')}"
        )
        (stored,) = events["events"]
        assert (stored["event_type"], stored["entity_type"]) == ("result.stored", "result")
        assert (stored["entity_id"], stored["parent_id"]) == ("task:big:attempt:1", "task:big:run:1")
        ref = stored["payload"]["result_ref"]
        for name in (quote(ref["ref"], safe=""), ref["meta"]["sha256"], "a"):
            assert await me.get(f"{at(run_id)}/results/{name}") == ["x" * 100] * 1000
        other = await me.run(playbook({"step": "a", "tool": noop()}))
        await me.get(f"{at(other)}/results/{quote(ref['ref'], safe='')}", expected=404)
