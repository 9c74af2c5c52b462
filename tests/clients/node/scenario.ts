// Everything else that an editor may meet: each step prints one line of JSON.

import type * as grpc from "@grpc/grpc-js";
import { status } from "@grpc/grpc-js";
import { v7 } from "uuid";
import * as guide from "./guide";
import type { ConnectResponse__Output } from "./generated/receiptd/v1/ConnectResponse";
import type { DeliveredResult__Output } from "./generated/receiptd/v1/DeliveredResult";
import type { GetOperationResponse__Output } from "./generated/receiptd/v1/GetOperationResponse";
import type { Operation__Output } from "./generated/receiptd/v1/Operation";
import type { SessionAckResultItem__Output } from "./generated/receiptd/v1/SessionAckResultItem";
import type { SessionSubmitResultItem__Output } from "./generated/receiptd/v1/SessionSubmitResultItem";
import type { StreamDeliveriesResponse__Output } from "./generated/receiptd/v1/StreamDeliveriesResponse";
import type { SubmitOperationRequest } from "./generated/receiptd/v1/SubmitOperationRequest";
import type { SubmitOperationResponse__Output } from "./generated/receiptd/v1/SubmitOperationResponse";
import type { WatchOperationResponse__Output } from "./generated/receiptd/v1/WatchOperationResponse";

const { RECEIPTD_ADDRESS = "", RECEIPTD_CUT = "", RECEIPTD_SILENT = "" } = process.env;
const connection = guide.connect(RECEIPTD_ADDRESS);

function emit(step: string, fields: object) {
  console.log(JSON.stringify({ step, ...fields }));
}

function request(target: string, line: string, inbox: string): SubmitOperationRequest {
  const text = Buffer.from(JSON.stringify({ line }));
  const intent = { action: "document.append", target, arguments: text };
  return { operationId: v7(), intent, inbox };
}

function lookUp(operationId?: string) {
  const credentials = guide.credentials();
  return guide.unary<GetOperationResponse__Output>((done) =>
    connection.operations.getOperation({ operationId }, credentials, guide.within(10_000), done),
  );
}

/** How a call failed that must fail. */
async function failure(call: Promise<unknown>) {
  try {
    await call;
  } catch (error) {
    const info = guide.errorInfo(error);
    const code = status[(error as grpc.ServiceError).code];
    return { code, reason: info?.reason ?? "", ...info?.metadata };
  }
  return { code: "OK", reason: "" };
}

async function submitOver(address: string, asked: SubmitOperationRequest, milliseconds: number) {
  const over = guide.connect(address);
  const end = guide.within(milliseconds);
  const call = guide.unary((done) =>
    over.operations.submitOperation(asked, guide.credentials(), end, done),
  );
  const failed = await failure(call);
  over.channel.close();
  return failed;
}

function receipt(operation?: Operation__Output): string {
  return guide.service.Receipt.serialize(operation?.receipt ?? {}).toString("hex");
}

async function lostAnswers() {
  const asked = request("notes/cut", "once", "editor");
  emit("cut", { id: asked.operationId, ...(await submitOver(RECEIPTD_CUT, asked, 10_000)) });
  const { origin, operation } = await guide.submit(connection, asked);
  emit("again", { origin, state: operation?.state, receipt: receipt(operation) });
  const found = await lookUp(asked.operationId);
  emit("looked_up", { standing: found.standing, receipt: receipt(found.operation) });
  const other = { ...asked, intent: request("notes/cut", "other", "editor").intent };
  emit("mismatch", await failure(guide.submit(connection, other)));

  const silent = request("notes/silent", "once", "editor");
  const failed = await submitOver(RECEIPTD_SILENT, silent, 1_000);
  emit("silent", { standing: (await lookUp(silent.operationId)).standing, ...failed });
}

/** Reads on a connection of its own what waits in the inbox, and drops the stream. */
async function backlog(resumeToken: string) {
  const over = guide.connect(RECEIPTD_ADDRESS);
  const opening = { inbox: "editor", consumerId: "laptop", resumeToken };
  const end = guide.within(20_000);
  const stream = over.inboxes.streamDeliveries(opening, guide.credentials(), end);
  const kinds: unknown[] = [];
  const results: DeliveredResult__Output[] = [];
  let token = "";
  stream.on("error", () => {});
  for await (const frame of stream as AsyncIterable<StreamDeliveriesResponse__Output>) {
    kinds.push(frame.frame);
    results.push(...(frame.deliveries?.results ?? []));
    token = frame.caughtUp?.resumeToken ?? "";
    if (frame.caughtUp) break;
  }
  stream.cancel();
  over.channel.close();
  results.sort((one, two) => Number(one.delivery?.sequence) - Number(two.delivery?.sequence));
  const shown = results.map(({ delivery, operation, redelivered }) => ({
    sequence: Number(delivery?.sequence),
    target: operation?.receipt?.target,
    attempt: delivery?.attempt,
    redelivered: redelivered ?? false,
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
    emit(step, { outcomes: acked.map(({ outcome }) => outcome) });
  }
  emit("after_acks", (await backlog(resumed.token)).shown);
}

async function endings() {
  const { operations } = connection;
  const holder = request("notes/held", "holder", "locks");
  const intent = { ...holder.intent, lockMode: "LOCK_MODE_UNTIL_ACKED" } as const;
  const held = await guide.submit(connection, { ...holder, intent });
  const waiter = { ...request("notes/held", "waiter", "locks"), wait: { seconds: 30 } };
  const answer = await guide.unary<SubmitOperationResponse__Output>((done) =>
    operations.submitOperation(waiter, guide.credentials(), guide.within(1_000), done),
  );
  emit("deadline", {
    origin: answer.origin,
    state: answer.operation?.state,
    waits_for_holder: answer.operation?.waitingFor?.operationId === holder.operationId,
    next: answer.recovery?.action,
  });

  const { operationId } = waiter;
  const stream = operations.watchOperation({ operationId }, guide.credentials());
  let snapshot;
  const ended = await failure(
    (async () => {
      for await (const look of stream as AsyncIterable<WatchOperationResponse__Output>) {
        snapshot = look.snapshot;
        stream.cancel();
      }
    })(),
  );
  const state = (await lookUp(operationId)).operation?.state;
  emit("stream_cancelled", { snapshot, code: ended.code, state });

  await channelClosed(held);
}

async function channelClosed(held: SubmitOperationResponse__Output) {
  const { operations } = connection;
  const closed = { ...request("notes/held", "closed", "locks"), wait: { seconds: 30 } };
  const { operationId } = closed;
  const over = guide.connect(RECEIPTD_ADDRESS);
  let call: { cancel(): void } | undefined;
  const submitted = failure(
    guide.unary((done) => {
      const end = guide.within(30_000);
      call = over.operations.submitOperation(closed, guide.credentials(), end, done);
    }),
  );
  const end = Date.now() + 10_000;
  while ((await lookUp(operationId)).standing !== "STANDING_RECORDED") {
    if (Date.now() > end) throw new Error("the submit is not recorded");
  }
  // Closing alone would let what runs on this channel come to its end.
  call?.cancel();
  over.channel.close();
  const { code } = await submitted;
  emit("channel_closed", { code, state: (await lookUp(operationId)).operation?.state });

  await guide.ack(connection, [{ delivery: held.deliveries?.[0] }]);
  const watch = operations.watchOperation(
    { operationId },
    guide.credentials(),
    guide.within(10_000),
  );
  let watched;
  for await (const look of watch as AsyncIterable<WatchOperationResponse__Output>) {
    watched = look.operation?.state;
  }
  emit("released", { watched, origin: (await guide.submit(connection, closed)).origin });
}

/** Submit, result and ack on one stream in both directions. */
async function sessions() {
  const stream = connection.sessions.connect(guide.credentials(), guide.within(20_000));
  const ended = new Promise<grpc.StatusObject>((resolve) => stream.on("status", resolve));
  stream.write({ open: { inbox: "session", consumerId: "laptop" } });
  let first: unknown;
  let submitted: SessionSubmitResultItem__Output | undefined;
  let acked: SessionAckResultItem__Output | undefined;
  for await (const frame of stream as AsyncIterable<ConnectResponse__Output>) {
    if (!first) {
      first = frame.frame;
      const item = { tag: 7, request: request("notes/session", "once", "session") };
      stream.write({ submit: { items: [item] } });
    }
    for (const result of frame.submitResult?.results ?? []) submitted = result;
    for (const { delivery } of frame.deliveries?.results ?? []) {
      const deliveries = [{ inbox: "session", sequence: delivery?.sequence }];
      stream.write({ ack: { tag: 8, request: { deliveries } } });
    }
    for (const result of frame.ackResult?.results ?? []) acked = result;
    if (submitted && acked) stream.end();
  }
  emit("session", {
    first,
    submit_tag: Number(submitted?.tag),
    origin: submitted?.result?.response?.origin,
    ack_tag: Number(acked?.tag),
    outcome: acked?.response?.results?.[0]?.outcome,
    code: status[(await ended).code],
  });
}

async function main() {
  await lostAnswers();
  await deliveries();
  await endings();
  await sessions();
  connection.channel.close();
}

void main();
