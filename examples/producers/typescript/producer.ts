// Appends the events of a run to a Runwright server, from an engine that is not Runwright. Node has all it needs.
//
//     tsc --target es2022 --module nodenext --types node producer.ts
//     RUNWRIGHT_TOKEN=... node producer.js http://127.0.0.1:8484 nightly-42
//     node producer.js --keys ../key-vectors.json          prints the keys of the test vectors

import { createHash, randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

interface KeyFields {
  runId: string;
  stepId: string | null;
  logicalAttemptId: number;
  eventType: string;
  planId: string;
  planVersion: string;
}

interface RunEvent extends Omit<KeyFields, "stepId"> {
  eventId: string;
  tenantId: string;
  projectId: string;
  environmentId: string;
  engineAttemptId: number;
  idempotencyKey: string;
  emittedAt: string;
  stepId?: string;
  payload?: Record<string, unknown>;
}

interface Receipt {
  status: "appended" | "duplicate" | "refused" | "not_attempted";
  runSeq?: number;
  code?: string;
  detail?: string;
}

// The same six fields are the same event, whoever sends it and however often.
function idempotencyKey(fields: KeyFields): string {
  const { runId, stepId, logicalAttemptId, eventType, planId, planVersion } = fields;
  const preimage = [runId, stepId ?? "RUN", logicalAttemptId, eventType, planId, planVersion].join("|");
  return createHash("sha256").update(preimage, "utf8").digest("hex");
}

function newEvent(runId: string, eventType: string, stepId: string | null, payload?: Record<string, unknown>): RunEvent {
  const fields: KeyFields = { runId, stepId, logicalAttemptId: 1, eventType, planId: "nightly", planVersion: "1" };
  return {
    eventId: randomUUID(), // a new one for each event; the same one for each retry of it
    eventType,
    runId,
    tenantId: "default",
    projectId: "default",
    environmentId: "default",
    planId: fields.planId,
    planVersion: fields.planVersion,
    engineAttemptId: 1, // raised when this engine restarts the attempt; not part of the key
    logicalAttemptId: fields.logicalAttemptId,
    idempotencyKey: idempotencyKey(fields),
    emittedAt: new Date().toISOString(),
    ...(stepId === null ? {} : { stepId }),
    ...(payload === undefined ? {} : { payload }),
  };
}

// Sends events until their receipts are here: whatever happened to an earlier request, sending them again is right.
async function append(server: string, token: string, events: RunEvent[]): Promise<Receipt[]> {
  for (let pause = 200; ; pause = Math.min(pause * 2, 5000)) {
    try {
      const response = await fetch(`${server}/v1/events`, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
        body: JSON.stringify(events),
      });
      if (response.ok) {
        return ((await response.json()) as { results: Receipt[] }).results;
      }
      if (response.status !== 429 && response.status < 500) {
        throw new Refused(await response.text());
      }
      pause = Math.max(pause, 1000 * Number(response.headers.get("retry-after") ?? 0));
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    await sleep(pause);
  }
}

class Refused extends Error {}

async function main(): Promise<void> {
  const [server, runId] = process.argv.slice(2);
  if (server === "--keys" && runId !== undefined) {
    const vectors = JSON.parse(await readFile(runId, "utf8")) as KeyFields[];
    vectors.forEach((vector) => console.log(idempotencyKey(vector)));
    return;
  }
  const token = process.env.RUNWRIGHT_TOKEN;
  if (server === undefined || runId === undefined || token === undefined) {
    throw new Refused("Usage: RUNWRIGHT_TOKEN=... node producer.js SERVER RUN_ID");
  }
  const events = [
    newEvent(runId, "RunQueued", null),
    newEvent(runId, "RunStarted", null),
    newEvent(runId, "StepStarted", "extract"),
    newEvent(runId, "StepCompleted", "extract", { result: { rows: 3, place: "Zürich" } }),
    newEvent(runId, "RunCompleted", null),
  ];
  const receipts = await append(server, token, events);
  receipts.forEach((receipt, index) => console.log(JSON.stringify({ eventType: events[index]?.eventType, ...receipt })));
  if (receipts.some((receipt) => receipt.runSeq === undefined)) {
    process.exitCode = 1;
  }
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
