// Everything else that a page may meet: each step prints one line of JSON.

import { toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { v7 } from "uuid";
import { page } from "./browser.js";
import * as guide from "./guide.js";
import { AckOutcome, type DeliveredResult } from "./generated/receiptd/v1/inbox_service_pb.js";
import {
  SubmitOperationRequestSchema,
  type SubmitOperationResponse,
} from "./generated/receiptd/v1/operation_service_pb.js";
import {
  LockMode,
  Operation_State,
  Origin,
  ReceiptSchema,
  RecoveryAction,
  Standing,
  type Operation,
} from "./generated/receiptd/v1/types_pb.js";

type Submit = MessageInitShape<typeof SubmitOperationRequestSchema>;
type Submitted = Exclude<Submit, { $typeName: string }> & { operationId: string };

const { RECEIPTD_ADDRESS = "", RECEIPTD_CUT = "", RECEIPTD_SILENT = "" } = process.env;
const { RECEIPTD_ORIGIN = "", RECEIPTD_TOKEN } = process.env;

function open(address: string, origin = RECEIPTD_ORIGIN) {
  return guide.connect(`http://${address}`, RECEIPTD_TOKEN, page(origin));
}
const connection = open(RECEIPTD_ADDRESS);
const { operations } = connection;

// The generator cuts the prefixes of names off.
const state = (operation?: Operation) => `STATE_${Operation_State[operation?.state ?? 0]}`;
const origin = (answer: SubmitOperationResponse) => `ORIGIN_${Origin[answer.origin]}`;
const standing = (found: { standing: Standing }) => `STANDING_${Standing[found.standing]}`;

function emit(step: string, fields: object) {
  console.log(JSON.stringify({ step, ...fields }));
}

function request(target: string, line: string, inbox: string): Submitted {
  const text = new TextEncoder().encode(JSON.stringify({ line }));
  return {
    operationId: v7(),
    intent: { action: "document.append", target, arguments: text },
    inbox,
  };
}

function lookUp(operationId: string) {
  return operations.getOperation({ operationId }, { timeoutMs: 10_000 });
}

/** How a call failed that must fail. */
async function failure(call: Promise<unknown>) {
  try {
    await call;
  } catch (error) {
    const info = guide.errorInfo(error);
    const word = Code[ConnectError.from(error).code].replace(/(?<=[a-z])(?=[A-Z])/g, "_");
    // Connect spells it with one L, gRPC with two.
    const code = word.toUpperCase().replace(/^CANCELED$/, "CANCELLED");
    return { code, reason: info?.reason ?? "", ...info?.metadata };
  }
  return { code: "OK", reason: "" };
}

function receipt(operation?: Operation): string {
  if (!operation?.receipt) return "";
  return Buffer.from(toBinary(ReceiptSchema, operation.receipt)).toString("hex");
}

async function lostAnswers() {
  const asked = request("notes/cut", "once", "editor");
  const lost = open(RECEIPTD_CUT).operations.submitOperation(asked, { timeoutMs: 10_000 });
  emit("cut", { id: asked.operationId, ...(await failure(lost)) });
  const again = await guide.submit(connection, asked);
  emit("again", {
    origin: origin(again),
    state: state(again.operation),
    receipt: receipt(again.operation),
  });
  const found = await lookUp(asked.operationId);
  emit("looked_up", { standing: standing(found), receipt: receipt(found.operation) });
  const other = { ...asked, intent: request("notes/cut", "other", "editor").intent };
  emit("mismatch", await failure(guide.submit(connection, other)));

  const silent = request("notes/silent", "once", "editor");
  const unheard = open(RECEIPTD_SILENT).operations.submitOperation(silent, { timeoutMs: 1_000 });
  const failed = await failure(unheard);
  emit("silent", { standing: standing(await lookUp(silent.operationId)), ...failed });
}

/** Reads what waits in the inbox, and drops the stream. */
async function backlog(resumeToken: string) {
  const ending = new AbortController();
  const opening = { inbox: "editor", consumerId: "laptop", resumeToken };
  const kinds: unknown[] = [];
  const results: DeliveredResult[] = [];
  let token = "";
  const { signal } = ending;
  const stream = open(RECEIPTD_ADDRESS).inboxes.streamDeliveries(opening, { signal });
  for await (const { frame } of stream) {
    kinds.push(frame.case);
    if (frame.case === "deliveries") results.push(...frame.value.results);
    if (frame.case === "caughtUp") {
      token = frame.value.resumeToken;
      break;
    }
  }
  ending.abort();
  results.sort((one, two) => Number(one.delivery?.sequence) - Number(two.delivery?.sequence));
  const shown = results.map(({ delivery, operation, redelivered }) => ({
    sequence: Number(delivery?.sequence),
    target: operation?.receipt?.target,
    attempt: delivery?.attempt,
    redelivered,
  }));
  return { shown: { first: kinds[0], results: shown }, results, token };
}

async function deliveries() {
  const first = await backlog("");
  emit("stream", first.shown);
  const resumed = await backlog(first.token);
  emit("resumed", resumed.shown);
  for (const step of ["acked", "acked_again"]) {
    const acked = await guide.ack(connection, resumed.results);
    emit(step, { outcomes: acked.map(({ outcome }) => `ACK_OUTCOME_${AckOutcome[outcome]}`) });
  }
  emit("after_acks", (await backlog(resumed.token)).shown);
}

async function endings() {
  const holder = request("notes/held", "holder", "locks");
  const intent = { ...holder.intent, lockMode: LockMode.UNTIL_ACKED };
  const held = await guide.submit(connection, { ...holder, intent } as Submit);
  const waiter = { ...request("notes/held", "waiter", "locks"), wait: { seconds: 30n } };
  const answer = await operations.submitOperation(waiter, { timeoutMs: 1_000 });
  emit("deadline", {
    origin: origin(answer),
    state: state(answer.operation),
    waits_for_holder: answer.operation?.waitingFor?.operationId === holder.operationId,
    next: `RECOVERY_ACTION_${RecoveryAction[answer.recovery?.action ?? 0]}`,
  });

  const { operationId } = waiter;
  const ending = new AbortController();
  let snapshot;
  const watching = async () => {
    const { signal } = ending;
    for await (const look of operations.watchOperation({ operationId }, { signal })) {
      snapshot = look.snapshot;
      ending.abort();
    }
  };
  const { code } = await failure(watching());
  const { operation } = await lookUp(operationId);
  emit("stream_cancelled", { snapshot, code, state: state(operation) });

  await channelClosed(held);
}

async function channelClosed(held: SubmitOperationResponse) {
  const closed = { ...request("notes/held", "closed", "locks"), wait: { seconds: 30n } };
  const { operationId } = closed;
  const leaving = new AbortController();
  const call = failure(operations.submitOperation(closed, { signal: leaving.signal }));
  const end = Date.now() + 10_000;
  while ((await lookUp(operationId)).standing !== Standing.RECORDED) {
    if (Date.now() > end) throw new Error("the submit is not recorded");
  }
  leaving.abort();
  const { code } = await call;
  const found = await lookUp(operationId);
  emit("channel_closed", { code, state: state(found.operation) });

  const [delivery] = held.deliveries;
  await guide.ack(connection, [{ delivery } as DeliveredResult]);
  let watched;
  for await (const look of operations.watchOperation({ operationId }, { timeoutMs: 10_000 })) {
    watched = state(look.operation);
  }
  emit("released", { watched, origin: origin(await guide.submit(connection, closed)) });
}

/** A page that the server does not list sees nothing, and does nothing. */
async function foreign() {
  const other = open(RECEIPTD_ADDRESS, "https://other.example");
  const asked = request("notes/foreign", "never", "editor");
  const failed = await failure(other.operations.submitOperation(asked));
  emit("foreign", { ...failed, standing: standing(await lookUp(asked.operationId)) });
}

await lostAnswers();
await deliveries();
await endings();
await foreign();
// Idle connections would keep Node waiting.
process.exit(0);
